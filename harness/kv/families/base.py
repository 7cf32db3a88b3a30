"""What every family shares: heads and head sizes, and the record of a family's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.errors import ModelConfigError
from harness.kv.fields import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, Fields, short
from harness.kv.layers import Layer, LayerKind
from harness.kv.units import counted

#: how the feed-forward block multiplies: ``gated`` has three matrices, ``plain`` two
Mlp = Literal["gated", "plain", "none"]


@dataclass(frozen=True)
class Family:
    """The rules of one ``model_type``."""

    layers: Callable[[Fields], tuple[Layer, ...]]
    #: what the family's config class assumes when the file says nothing
    defaults: Mapping[str, object] = field(default_factory=dict)
    mlp: Mlp = "gated"
    #: whether the output projection shares the embedding's weights when the file says nothing
    tied: bool = False
    #: the longest a request may be, where positions do not say it
    positions: int | None = None


@dataclass(frozen=True)
class Heads:
    """Attention sizes of a decoder layer."""

    query: int
    kv: int
    k_dim: int
    v_dim: int

    def layer(self, kind: LayerKind = "full", window: int | None = None) -> Layer:
        """A layer with these sizes."""
        return Layer(kind, self.kv, self.k_dim, self.v_dim, window)


def query_heads(fields: Fields) -> int:
    """Query heads; raises ModelConfigError."""
    return fields.need("the number of attention heads", *HEADS)


def head_dim(fields: Fields, heads: int) -> int:
    """An explicit head size wins: it need not be hidden size / heads."""
    explicit = fields.integer(*HEAD_DIM)
    if explicit is not None:
        return explicit
    hidden = fields.need("the hidden size", *HIDDEN)
    if hidden % heads:
        raise ModelConfigError(
            f"{fields.where}: hidden size {hidden} is no multiple of {heads} attention heads "
            "and no head_dim is given"
        )
    return hidden // heads


def checked_heads(fields: Fields, kv_heads: int | None) -> Heads:
    """Sizes with ``kv_heads`` KV heads (None: as many as query heads)."""
    heads = query_heads(fields)
    kv = kv_heads or heads
    if heads % kv:
        raise ModelConfigError(
            f"{fields.where}: {heads} attention heads cannot share {kv} KV heads; "
            "expected a number that divides the heads"
        )
    size = head_dim(fields, heads)
    return Heads(heads, kv, size, fields.integer("v_head_dim") or size)


def standard_heads(fields: Fields) -> Heads:
    """Sizes under the usual names; KV heads absent or null means as many as query heads."""
    return checked_heads(fields, fields.integer(*KV_HEADS))


def layer_count(fields: Fields) -> int:
    """Decoder layers; raises ModelConfigError."""
    return fields.need("the number of layers", *LAYERS)


#: fields of cache schemes other than K and V of every token
_FOREIGN = (
    "kv_lora_rank",
    "attn_layer_period",
    "attn_layer_indices",
    "hybrid_override_pattern",
    "layers_block_type",
    "full_attention_interval",
    "attn_type_list",
    "num_kv_shared_layers",
)


def plain_layers(fields: Fields, heads: Heads | None = None) -> tuple[Layer, ...]:
    """Every layer keeps K and V of every token, unless ``layer_types`` says that it slides.

    ``heads`` stand in for those under the usual names. Raises ModelConfigError when a field
    belongs to another cache scheme.
    """
    refuse_foreign(fields)
    heads = heads or standard_heads(fields)
    if fields.has("layer_types"):
        return layers_with_pattern(fields, 1, heads=heads)
    return (heads.layer(),) * layer_count(fields)


def refuse_foreign(fields: Fields) -> None:
    """Raise ModelConfigError when a field belongs to a scheme other than K and V per token."""
    foreign = [name for name in _FOREIGN if fields.config.get(name)]
    if foreign:
        raise ModelConfigError(
            f"{fields.where}: {', '.join(foreign)} does not belong to this architecture, whose "
            "layers keep K and V of single tokens; refusing to guess"
        )


def window_size(fields: Fields) -> int | None:
    """The sliding window; 0 and null mean that there is none."""
    return fields.integer("sliding_window", "sliding_window_size", minimum=0) or None


def checked_types(fields: Fields, types: list[str], layers: int) -> list[str]:
    """``types`` when there is one per layer; raises ModelConfigError."""
    if len(types) != layers:
        raise ModelConfigError(
            f"{fields.where}: layer_types has {counted(len(types), 'entry', 'entries')} for "
            f"{counted(layers, 'layer')}"
        )
    return types


def typed_layer(fields: Fields, heads: Heads, kind: str, window: int | None) -> Layer:
    """The layer that a ``layer_types`` entry names; raises ModelConfigError."""
    if kind in ("full_attention", "attention"):
        return heads.layer()
    if kind in ("sliding_attention", "local_attention"):
        return heads.layer("sliding", needed(fields, "sliding_window", window))
    if kind == "chunked_attention":
        return heads.layer("chunked", fields.need("the chunk size", "attention_chunk_size"))
    raise ModelConfigError(
        f"{fields.where}: layer_types has {short(kind)}, a cache scheme that is not known here"
    )


def needed(fields: Fields, name: str, value: int | None) -> int:
    """``value``; raises ModelConfigError when a sliding layer lacks its window."""
    if value is None:
        raise ModelConfigError(
            f"{fields.where}: layer_types has sliding layers but {name} is not set"
        )
    return value


def layers_with_pattern(
    fields: Fields, period: int, widen: int = 0, heads: Heads | None = None
) -> tuple[Layer, ...]:
    """Layers of a sliding/full pattern; ``widen`` adds to the window that the config states."""
    count = layer_count(fields)
    heads = heads or standard_heads(fields)
    window = window_size(fields)
    if window is not None:
        window += widen
    types = fields.names("layer_types")
    if types is None:
        every = fields.integer("sliding_window_pattern", "_sliding_window_pattern") or period
        sliding = window is not None
        types = [
            "sliding_attention" if sliding and (index + 1) % every else "full_attention"
            for index in range(count)
        ]
    return tuple(
        typed_layer(fields, heads, kind, window) for kind in checked_types(fields, types, count)
    )
