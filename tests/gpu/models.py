"""Llama models with random weights, made on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Shape:
    """A Llama architecture; the word embedding and the output share their weights or not."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    positions: int = 16384

    @property
    def kv_elements(self) -> int:
        """Numbers of one token's keys and values: 2 x layers x KV heads x head_dim."""
        return 2 * self.layers * self.kv_heads * self.head_dim


#: the published shapes of Llama 3.2 1B and Llama 3.1 8B
MODELS = [
    Shape("1b", 16, 2048, 8192, 32, 8, 64, 128_256, True),
    Shape("8b", 32, 4096, 14_336, 32, 8, 128, 128_256, False),
]
TINY = Shape("tiny", 2, 64, 128, 4, 2, 32, 288, True, positions=1024)

ITEMSIZE = 2


def parameter_bytes(shape: Shape) -> int:
    """Weights in bfloat16."""
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    layer = attention + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    embedding = shape.vocab * shape.hidden * (1 if shape.tied else 2)
    return (shape.layers * layer + embedding + shape.hidden) * ITEMSIZE


def make_model(shape: Shape, device: torch.device) -> Any:
    """Random bfloat16 weights of a fixed seed, in place on the device."""
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=shape.tied,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval()
