"""The built-in ``tiny`` model: a random Llama of 2.4 M parameters with a byte-level tokenizer.

It is made of numpy's frozen ``RandomState`` stream alone, so that every machine gets the
same bytes. Its text means nothing; its cost and its KV cache (1,024 B per token in bf16:
2 x 4 layers x 2 KV heads x 32 x 2 B) are what a load test needs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HIDDEN = 256
INTERMEDIATE = 512
LAYERS = 4
HEADS = 8
KV_HEADS = 2
HEAD_DIM = 32
POSITIONS = 16_384
SEED = 20_240_607
#: standard deviation of the weights: at the usual 0.02 a random model repeats one token
#: whatever the prompt; at this one its greedy answers vary and depend on the prompt
SPREAD = 0.1

SPECIALS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")
BOS, EOS, PAD = 256, 257, 258
VOCABULARY = 256 + len(SPECIALS)

#: printable ASCII and the newline: the only tokens that greedy answers are made of
TEXT_BYTES = (10, *range(32, 127))

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|eos|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": BOS,
    "dtype": "bfloat16",
    "eos_token_id": EOS,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": SPREAD,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": POSITIONS,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "pad_token_id": PAD,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": VOCABULARY,
}

TOKENIZER_CONFIG: dict[str, object] = {
    "bos_token": "<|bos|>",
    "eos_token": "<|eos|>",
    "pad_token": "<|pad|>",
    "chat_template": CHAT_TEMPLATE,
    "clean_up_tokenization_spaces": False,
    "model_max_length": POSITIONS,
    "tokenizer_class": "PreTrainedTokenizerFast",
}

GENERATION_CONFIG: dict[str, object] = {
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}


def make_tiny(folder: Path) -> None:
    """Write the model's files into ``folder``, which must exist."""
    tensors = dict(_tensors())
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    for name, content in (
        ("config.json", CONFIG),
        ("generation_config.json", GENERATION_CONFIG),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
        ("tokenizer.json", _tokenizer()),
    ):
        (folder / name).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def _tensors() -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every weight by its name in transformers' Llama, ``[out, in]``."""
    stream = np.random.RandomState(SEED)
    # uniform, not normal: no logarithm, so no last-bit differences between C libraries
    half_width = SPREAD * 3**0.5

    def weight(rows: int, columns: int) -> NDArray[np.float32]:
        return stream.uniform(-half_width, half_width, (rows, columns)).astype(np.float32)

    ones = np.ones(HIDDEN, np.float32)
    yield "model.embed_tokens.weight", weight(VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", ones
        yield f"{name}.self_attn.q_proj.weight", weight(HEADS * HEAD_DIM, HIDDEN)
        yield f"{name}.self_attn.k_proj.weight", weight(KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{name}.self_attn.v_proj.weight", weight(KV_HEADS * HEAD_DIM, HIDDEN)
        yield f"{name}.self_attn.o_proj.weight", weight(HIDDEN, HEADS * HEAD_DIM)
        yield f"{name}.post_attention_layernorm.weight", ones
        yield f"{name}.mlp.gate_proj.weight", weight(INTERMEDIATE, HIDDEN)
        yield f"{name}.mlp.up_proj.weight", weight(INTERMEDIATE, HIDDEN)
        yield f"{name}.mlp.down_proj.weight", weight(HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", ones
    head = weight(VOCABULARY, HIDDEN)
    # a zero row gives the logit 0, which the best of the text bytes beats: greedy answers
    # are readable and never end early by chance
    silent = np.setdiff1d(np.arange(VOCABULARY), TEXT_BYTES)
    head[silent] = 0.0
    yield "lm_head.weight", head


def safetensors_bytes(tensors: dict[str, NDArray[np.float32]]) -> bytes:
    """A safetensors file of bf16 tensors.

    Format: the header's length as a little-endian u64, the header as JSON padded with
    spaces to a multiple of 8, then the tensors end to end.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, tensor in tensors.items():
        part = bfloat16_bytes(tensor)
        header[name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(part)],
        }
        parts.append(part)
        offset += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def bfloat16_bytes(values: NDArray[np.float32]) -> bytes:
    """Round finite float32 to bf16, half to even, little-endian."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2").tobytes()


def _tokenizer() -> dict[str, object]:
    """tokenizers' JSON for: token id = byte value, then the special tokens."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    vocabulary |= {special: 256 + index for index, special in enumerate(SPECIALS)}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + index,
                "content": special,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, special in enumerate(SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies.

    Bytes that print as Latin-1 stand for themselves; the others take the code points
    from 256 on, in order (the scheme of GPT-2, which tokenizers' ``ByteLevel`` decodes).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
