"""Small models of every kind that vLLM runs on the CPU, with the settings to start them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.kv.engine import EngineOptions
from harness.kv.plan import plan
from harness.kv.plan_types import Plan, PlanOptions

MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One small model and the settings it is started with."""

    name: str
    config: dict[str, Any]
    max_model_len: int = 2048
    kv_memory_bytes: int = 64 * MIB
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_dtype: str = "auto"
    #: further flags of vLLM that mean what our options mean
    flags: tuple[str, ...] = field(default_factory=tuple)
    hybrid_manager: bool | None = None

    def ours(self) -> Plan:
        """Our figures for the same settings."""
        engine = EngineOptions(
            device="cpu",
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            hybrid_manager=self.hybrid_manager,
        )
        options = PlanOptions(
            engine=engine, kv_memory_bytes=self.kv_memory_bytes, kv_dtype=self.kv_dtype
        )
        return plan(self.config, options, self.name)


def decoder(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    """A small decoder's config."""
    base: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 512,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    return base | more


def gemma3(layers: int, pattern: int, **more: Any) -> dict[str, Any]:
    """A text-only Gemma 3 whose every ``pattern``-th layer is full."""
    types = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]
    sizes: dict[str, Any] = {
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 256,
        "layer_types": types,
    }
    return decoder("Gemma3ForCausalLM", "gemma3_text", **(sizes | more))


GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_layer": 3,
    "n_embd": 256,
    "n_head": 4,
    "n_positions": 1024,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEEPSEEK = decoder(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=64,
    kv_lora_rank=512,
    q_lora_rank=None,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    n_routed_experts=2,
    first_k_dense_replace=4,
)

CASES = (
    Case("GQA: 8 heads, 2 KV heads", decoder("LlamaForCausalLM", "llama")),
    Case("MQA: 8 heads, 1 KV head", decoder("LlamaForCausalLM", "llama", num_key_value_heads=1)),
    Case("MHA: GPT-2 names, no dtype stated", GPT2, max_model_len=1024),
    Case(
        "explicit head_dim (hidden / heads = 32)",
        decoder("Qwen3ForCausalLM", "qwen3", head_dim=128, num_attention_heads=8),
    ),
    Case("hybrid: Gemma 3, 2 full + 10 sliding", gemma3(12, 6), max_model_len=4096),
    Case(
        "hybrid, 512 batched tokens",
        gemma3(12, 6),
        max_model_len=4096,
        max_num_batched_tokens=512,
    ),
    Case("hybrid, odd: 2 full + 5 sliding", gemma3(7, 3), max_model_len=4096),
    Case("hybrid, nearly equal: 5 full + 6 sliding", gemma3(11, 2), max_model_len=4096),
    Case(
        "hybrid without its manager",
        gemma3(12, 6),
        max_model_len=4096,
        flags=("--disable-hybrid-kv-cache-manager",),
        hybrid_manager=False,
    ),
    Case(
        "sliding only: Mistral, window 256",
        decoder("MistralForCausalLM", "mistral", sliding_window=256),
        max_model_len=4096,
        max_num_batched_tokens=1024,
    ),
    # 16 is the one block size that vLLM's latent kernels take with and without AMX
    Case("latent: DeepSeek V2, dense", DEEPSEEK, max_model_len=1024, block_size=16),
)
