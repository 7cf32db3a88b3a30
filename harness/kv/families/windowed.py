"""Families with sliding or chunked layers, and those that share K and V between layers."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import ModelConfigError
from harness.kv.families.base import (
    Family,
    checked_types,
    layer_count,
    layers_with_pattern,
    needed,
    refuse_foreign,
    standard_heads,
    typed_layer,
    window_size,
)
from harness.kv.fields import Fields
from harness.kv.layers import Layer


def _alternating(period: int) -> Callable[[Fields], tuple[Layer, ...]]:
    """Every ``period``-th layer is full, the others slide; ``layer_types`` wins."""

    def build(fields: Fields) -> tuple[Layer, ...]:
        return layers_with_pattern(fields, period)

    return build


def _all_sliding(fields: Fields) -> tuple[Layer, ...]:
    """Mistral and Phi-3: one window for all layers, or none."""
    refuse_foreign(fields)
    if fields.has("layer_types"):
        return layers_with_pattern(fields, 1)
    window = window_size(fields)
    heads = standard_heads(fields)
    layer = heads.layer() if window is None else heads.layer("sliding", window)
    return (layer,) * layer_count(fields)


def _qwen(fields: Fields) -> tuple[Layer, ...]:
    """A window is in force only with ``use_sliding_window``, from ``max_window_layers`` on."""
    refuse_foreign(fields)
    count = layer_count(fields)
    heads = standard_heads(fields)
    if not fields.flag("use_sliding_window"):
        return (heads.layer(),) * count
    if fields.has("layer_types"):
        return layers_with_pattern(fields, 1)
    window = needed(fields, "sliding_window", window_size(fields))
    first = fields.integer("max_window_layers", minimum=0) or 0
    return tuple(
        heads.layer("sliding", window) if index >= first else heads.layer()
        for index in range(count)
    )


def _cohere2(fields: Fields) -> tuple[Layer, ...]:
    # a layer sees the token itself and ``sliding_window`` tokens before it
    return layers_with_pattern(fields, 4, widen=1)


def _llama4(fields: Fields) -> tuple[Layer, ...]:
    """Layers with rotary positions attend within chunks, the others to everything."""
    count = layer_count(fields)
    heads = standard_heads(fields)
    chunk = fields.integer("attention_chunk_size", minimum=0) or None
    types = fields.names("layer_types")
    if types is None:
        rotary = fields.integers("no_rope_layers")
        if not rotary:
            every = fields.integer("no_rope_layer_interval") or 4
            rotary = [int((index + 1) % every != 0) for index in range(count)]
        types = ["chunked_attention" if local else "full_attention" for local in rotary]
    return tuple(
        heads.layer() if chunk is None else typed_layer(fields, heads, kind, None)
        for kind in checked_types(fields, types, count)
    )


def _gemma3n(fields: Fields) -> tuple[Layer, ...]:
    """The last ``num_kv_shared_layers`` layers read K and V that earlier ones keep."""
    layers = layers_with_pattern(fields, 5)
    shared = fields.integer("num_kv_shared_layers", minimum=0) or 0
    if shared >= len(layers):
        raise ModelConfigError(
            f"{fields.where}: num_kv_shared_layers is {shared} of {len(layers)} layers; "
            "expected fewer than all"
        )
    own = len(layers) - shared
    return layers[:own] + (Layer("shared"),) * shared


def _defaults(
    layers: int, hidden: int, heads: int, kv: int | None, **more: object
) -> dict[str, object]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


_MISTRAL = _defaults(
    32, 4096, 32, 8, intermediate_size=14336, vocab_size=32000, sliding_window=4096
)
_QWEN = _defaults(32, 4096, 32, 32, intermediate_size=22016, vocab_size=151936)
_GEMMA2 = _defaults(26, 2304, 8, 4, head_dim=256, intermediate_size=9216, sliding_window=4096)
_GEMMA3 = {**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072}
_GEMMA3N = _defaults(35, 2048, 8, 2, head_dim=256, sliding_window=512, num_kv_shared_layers=15)

FAMILIES: dict[str, Family] = {
    "cohere2": Family(_cohere2, {"sliding_window": 4096}, tied=True),
    "exaone4": Family(_alternating(4)),
    "gemma2": Family(_alternating(2), {**_GEMMA2, "vocab_size": 256000}, tied=True, positions=8192),
    "gemma3_text": Family(_alternating(6), _GEMMA3, tied=True),
    "gemma3n_text": Family(_gemma3n, _GEMMA3N, tied=True, positions=32768),
    "gpt_oss": Family(_alternating(2), _defaults(36, 2880, 64, 8, head_dim=64, sliding_window=128)),
    "llama4_text": Family(
        _llama4, _defaults(48, 5120, 40, 8, head_dim=128, attention_chunk_size=8192)
    ),
    "ministral": Family(_all_sliding, {"sliding_window": 4096}),
    "mistral": Family(_all_sliding, _MISTRAL),
    "mixtral": Family(_all_sliding, _defaults(32, 4096, 32, 8, intermediate_size=14336)),
    "olmo3": Family(_alternating(4)),
    "phi3": Family(_all_sliding),
    "phimoe": Family(_all_sliding),
    "qwen2": Family(_qwen, _QWEN),
    "qwen2_5_vl_text": Family(_qwen, _QWEN),
    "qwen2_moe": Family(_qwen),
    "qwen2_vl_text": Family(_qwen, _QWEN),
    "qwen3": Family(_qwen, {**_QWEN, "head_dim": 128}),
    "qwen3_moe": Family(_qwen),
    "qwen3_vl_text": Family(_qwen, {**_QWEN, "head_dim": 128}),
    "qwen3_vl_moe_text": Family(_qwen),
    "starcoder2": Family(_all_sliding, mlp="plain", tied=True),
}
