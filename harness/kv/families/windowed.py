"""Families with sliding or chunked layers, and those that share K and V between layers."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import ModelConfigError
from harness.kv.families.base import (
    Family,
    checked_types,
    layer_count,
    layers_with_pattern,
    refuse_foreign,
    standard_heads,
    typed_layer,
    window_size,
)
from harness.kv.fields import Fields, short
from harness.kv.layers import Layer

_FULL = {"full_attention", "attention"}
_SLIDING = {"sliding_attention"}


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
    """A window is in force only with ``use_sliding_window``, from ``max_window_layers`` on.

    ``layer_types`` wins over the count, and is checked whether windows are in force or not.
    """
    return _switched(fields, lambda index, first: index >= first)


def _qwen2_moe(fields: Fields) -> tuple[Layer, ...]:
    """Every other layer slides, up to ``max_window_layers``."""
    return _switched(fields, lambda index, first: index % 2 == 0 and index < first)


def _qwen3_moe(fields: Fields) -> tuple[Layer, ...]:
    """A window that is in force is that of all layers."""
    return _switched(fields, lambda index, first: True)


def _switched(fields: Fields, slides: Callable[[int, int], bool]) -> tuple[Layer, ...]:
    """Layers of the Qwen families, as transformers 5.19's config classes read them.

    Without ``use_sliding_window`` they drop the window, so that layers which
    ``layer_types`` calls sliding attend to everything; vLLM reads the same class.
    """
    refuse_foreign(fields)
    count, heads = layer_count(fields), standard_heads(fields)
    in_force = fields.flag("use_sliding_window")
    types = fields.names("layer_types")
    if types is not None:
        _check_names(fields, checked_types(fields, types, count), _FULL | _SLIDING)
        if not in_force and _SLIDING & set(types):
            fields.notes.append(
                "layer_types has sliding layers but use_sliding_window is not true: all layers "
                "count as full, as transformers and vLLM read it"
            )
    window = window_size(fields)
    if not in_force or (types is None and window is None):
        return (heads.layer(),) * count
    if types is None:
        first = fields.integer("max_window_layers", minimum=0) or 0
        types = [
            "sliding_attention" if slides(index, first) else "full_attention"
            for index in range(count)
        ]
    if len({kind in _SLIDING for kind in types}) > 1:
        fields.notes.append(
            "vLLM 0.32 gives Qwen windows in all layers or in none; with some, as here, the "
            "figures are the model's own"
        )
    return tuple(typed_layer(fields, heads, kind, window) for kind in types)


def _check_names(fields: Fields, types: list[str], known: set[str]) -> None:
    """Raise ModelConfigError for a layer type that the family does not have."""
    for kind in types:
        if kind not in known:
            raise ModelConfigError(
                f"{fields.where}: layer_types has {short(kind)}, which this family does not have; "
                f"expected {', '.join(sorted(known))}"
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
    if types is not None:
        _check_names(fields, types, _FULL | {"chunked_attention"})
    else:
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
_QWEN_WINDOWS = {"sliding_window": 4096, "max_window_layers": 28}
_QWEN = _defaults(32, 4096, 32, 32, intermediate_size=22016, vocab_size=151936, **_QWEN_WINDOWS)
_QWEN_VL = {**_QWEN, "max_window_layers": 80}
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
    "qwen2_5_vl_text": Family(_qwen, _QWEN_VL),
    "qwen2_moe": Family(_qwen2_moe, _QWEN_WINDOWS),
    "qwen2_vl_text": Family(_qwen, _QWEN_VL),
    "qwen3": Family(_qwen, {**_QWEN, "head_dim": 128}),
    "qwen3_moe": Family(_qwen3_moe, _QWEN_WINDOWS),
    "qwen3_vl_text": Family(_qwen, {**_QWEN, "head_dim": 128}),
    "qwen3_vl_moe_text": Family(_qwen3_moe),
    "starcoder2": Family(_all_sliding, mlp="plain", tied=True),
}
