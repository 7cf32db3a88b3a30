"""Families that mix attention with constant-state layers, and pure state models.

Only attention layers grow with the context. Which layers those are is stated by
``layer_types``, ``layers_block_type``, ``hybrid_override_pattern``,
``full_attention_interval`` or ``attn_layer_period``, in that order of trust.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import ModelConfigError
from harness.kv.families import states
from harness.kv.families.base import Family, layer_count, standard_heads
from harness.kv.fields import HIDDEN, LAYERS, Fields, short
from harness.kv.layers import Layer
from harness.kv.units import counted

_ATTENTION = {"attention", "full_attention", "*"}
_STATE = {"mamba", "linear_attention", "conv", "M"}
#: blocks without any cache of their own
_NEITHER = {"mlp", "moe", "-", "E"}


def _build(
    fields: Fields, types: Sequence[str], attention: Layer, state: Layer
) -> tuple[Layer, ...]:
    """Layers of the types; raises ModelConfigError for an unknown one, or too few or many."""
    layers = []
    for kind in types:
        if kind in _ATTENTION:
            layers.append(attention)
        elif kind in _STATE:
            layers.append(state)
        elif kind == "hybrid":
            layers += [attention, state]
        elif kind not in _NEITHER:
            raise ModelConfigError(
                f"{fields.where}: layer type {short(kind)} is a cache scheme that is not known here"
            )
    # newer configs state the types alone
    count = fields.integer(*LAYERS)
    if count is not None and len(types) != count:
        raise ModelConfigError(
            f"{fields.where}: {counted(len(types), 'layer type')} for {counted(count, 'layer')}"
        )
    return tuple(layers)


def _types(fields: Fields) -> list[str] | None:
    return fields.names("layer_types", "layers_block_type")


def _hidden(fields: Fields) -> int:
    return fields.need("the hidden size", *HIDDEN)


def _jamba(fields: Fields) -> tuple[Layer, ...]:
    count = layer_count(fields)
    types = _types(fields)
    if types is None:
        period = fields.need("the attention period", "attn_layer_period")
        offset = fields.need("the attention offset", "attn_layer_offset", minimum=0)
        types = ["attention" if i % period == offset else "mamba" for i in range(count)]
    inner = _hidden(fields) * (fields.integer("mamba_expand") or 2)
    state = states.mamba1(
        inner, fields.integer("mamba_d_state") or 16, fields.integer("mamba_d_conv") or 4
    )
    return _build(fields, types, standard_heads(fields).layer(), state)


def _qwen_next(fields: Fields) -> tuple[Layer, ...]:
    """Three gated delta layers, then one of full attention, unless the config says else."""
    count = layer_count(fields)
    types = _types(fields)
    if types is None:
        every = fields.integer("full_attention_interval") or 4
        types = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    state = states.gated_delta(
        k_heads=fields.need("the linear key heads", "linear_num_key_heads"),
        v_heads=fields.need("the linear value heads", "linear_num_value_heads"),
        k_dim=fields.need("the linear key head size", "linear_key_head_dim"),
        v_dim=fields.need("the linear value head size", "linear_value_head_dim"),
        kernel=fields.integer("linear_conv_kernel_dim") or 4,
        dtype=fields.text("mamba_ssm_dtype") or "auto",
    )
    return _build(fields, types, standard_heads(fields).layer(), state)


def _granite_hybrid(fields: Fields) -> tuple[Layer, ...]:
    types = _types(fields) or ["mamba"] * layer_count(fields)
    state = states.mamba2_from(
        fields, heads=("mamba_n_heads",), size=("mamba_d_head",), hidden=_hidden(fields)
    )
    return _build(fields, types, standard_heads(fields).layer(), state)


def _bamba(fields: Fields) -> tuple[Layer, ...]:
    count = layer_count(fields)
    attention = set(fields.integers("attn_layer_indices") or [])
    types = _types(fields) or ["attention" if i in attention else "mamba" for i in range(count)]
    state = states.mamba2_from(
        fields, heads=("mamba_n_heads",), size=("mamba_d_head",), hidden=_hidden(fields)
    )
    return _build(fields, types, standard_heads(fields).layer(), state)


def _falcon_h1(fields: Fields) -> tuple[Layer, ...]:
    """Attention and Mamba-2 side by side in every layer."""
    state = states.mamba2_from(
        fields, heads=("mamba_n_heads",), size=("mamba_d_head",), hidden=_hidden(fields)
    )
    return (standard_heads(fields).layer(), state) * layer_count(fields)


def _nemotron_h(fields: Fields) -> tuple[Layer, ...]:
    types: Sequence[str] | None = fields.text("hybrid_override_pattern") or _types(fields)
    if types is None:
        raise ModelConfigError(
            f"{fields.where}: neither hybrid_override_pattern nor layers_block_type is set"
        )
    state = states.mamba2_from(
        fields, heads=("mamba_num_heads",), size=("mamba_head_dim",), hidden=_hidden(fields)
    )
    return _build(fields, types, standard_heads(fields).layer(), state)


def _zamba2(fields: Fields) -> tuple[Layer, ...]:
    """A ``hybrid`` layer has both; its attention shares weights with others, not its cache."""
    types = _types(fields)
    if types is None:
        raise ModelConfigError(f"{fields.where}: layers_block_type is not set")
    state = states.mamba2_from(
        fields, heads=("n_mamba_heads",), size=("mamba_headdim",), hidden=_hidden(fields)
    )
    return _build(fields, types, standard_heads(fields).layer(), state)


def _lfm2(fields: Fields) -> tuple[Layer, ...]:
    count = layer_count(fields)
    full = fields.integers("full_attn_idxs")
    types = _types(fields)
    if types is None and full is not None:
        types = ["full_attention" if i in full else "conv" for i in range(count)]
    if types is None:
        raise ModelConfigError(f"{fields.where}: neither layer_types nor full_attn_idxs is set")
    width = fields.integer("conv_dim") or _hidden(fields)
    state = states.short_convolution(width, fields.integer("conv_L_cache") or 3)
    return _build(fields, types, standard_heads(fields).layer(), state)


def _minimax(fields: Fields) -> tuple[Layer, ...]:
    count = layer_count(fields)
    heads = standard_heads(fields)
    flags = fields.integers("attn_type_list")
    types = _types(fields)
    if types is None and flags is not None:
        types = ["full_attention" if flag else "linear_attention" for flag in flags]
    if types is None:
        types = ["linear_attention" if (i + 1) % 2 else "full_attention" for i in range(count)]
    state = states.lightning(heads.query, heads.k_dim)
    return _build(fields, types, heads.layer(), state)


def _mamba(fields: Fields) -> tuple[Layer, ...]:
    hidden = _hidden(fields)
    inner = fields.integer("intermediate_size", "d_inner") or hidden * (
        fields.integer("expand") or 2
    )
    state = states.mamba1(
        inner, fields.integer("state_size") or 16, fields.integer("conv_kernel") or 4
    )
    return (state,) * layer_count(fields)


def _mamba2(fields: Fields) -> tuple[Layer, ...]:
    state = states.mamba2_from(
        fields, heads=("num_heads",), size=("head_dim",), hidden=_hidden(fields)
    )
    return (state,) * layer_count(fields)


_GRANITE = {"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_head": "auto"}
_GDN = {
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_NEMOTRON = {"mamba_ssm_cache_dtype": "float32", "num_key_value_heads": 8, "head_dim": 128}

FAMILIES: dict[str, Family] = {
    "bamba": Family(_bamba, _GRANITE),
    "falcon_h1": Family(_falcon_h1),
    "falcon_mamba": Family(_mamba, mlp="none"),
    "granitemoehybrid": Family(_granite_hybrid, _GRANITE),
    "jamba": Family(_jamba, {"attn_layer_period": 8, "attn_layer_offset": 4}),
    "lfm2": Family(_lfm2, tied=True),
    "lfm2_moe": Family(_lfm2, tied=True),
    "mamba": Family(_mamba, mlp="none", tied=True),
    "mamba2": Family(_mamba2, mlp="none"),
    "minimax": Family(_minimax),
    "minimax_text_01": Family(_minimax),
    "nemotron_h": Family(_nemotron_h, _NEMOTRON, mlp="plain"),
    "qwen3_5_moe_text": Family(_qwen_next, _GDN),
    "qwen3_5_text": Family(_qwen_next, {**_GDN, "num_key_value_heads": 4}),
    "qwen3_next": Family(_qwen_next, _GDN),
    "zamba2": Family(_zamba2, {"n_mamba_heads": 8, "mamba_d_state": 64}, mlp="none", tied=True),
}
