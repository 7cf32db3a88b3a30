"""Decoders whose every layer keeps K and V of every token, under the usual names."""

from __future__ import annotations

from harness.kv.families.base import Family, plain_layers

_LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
_GEMMA = {
    "num_hidden_layers": 28,
    "hidden_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "intermediate_size": 24576,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
}

_GATED = (
    "arctic",
    "baichuan",
    "deepseek",
    "exaone",
    "glm",
    "glm4",
    "glm4_moe",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "internlm",
    "internlm2",
    "internlm3",
    "minicpm",
    "olmo",
    "olmo2",
    "olmoe",
    "qwen",
    "seed_oss",
    "smollm3",
    "stablelm",
    "xverse",
    "yi",
)
_PLAIN = ("codegen", "gpt_neox", "gpt_neox_japanese", "nemotron", "persimmon", "phi", "xglm")

FAMILIES: dict[str, Family] = {
    **{name: Family(plain_layers) for name in _GATED},
    **{name: Family(plain_layers, mlp="plain") for name in _PLAIN},
    "cohere": Family(plain_layers, tied=True),
    "gemma": Family(plain_layers, _GEMMA, tied=True),
    "llama": Family(plain_layers, _LLAMA),
}
