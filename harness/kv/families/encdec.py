"""Encoder-decoder families: self attention grows, cross attention is fixed per request.

The decoder's own names count. Config classes alias ``num_hidden_layers`` and
``num_attention_heads`` to the encoder here, so those are not read.
"""

from __future__ import annotations

from harness.errors import ModelConfigError
from harness.kv.families.base import Family
from harness.kv.fields import Fields
from harness.kv.layers import Layer


def _sizes(fields: Fields, layers: tuple[str, ...], heads: tuple[str, ...]) -> tuple[int, int, int]:
    """Decoder layers, decoder heads, head size."""
    count = fields.need("the number of decoder layers", *layers)
    query = fields.need("the number of decoder heads", *heads)
    width = fields.need("the model width", "d_model", "hidden_size")
    size = fields.integer("d_kv")
    if size is None:
        if width % query:
            raise ModelConfigError(
                f"{fields.where}: d_model {width} is no multiple of {query} decoder heads"
            )
        size = width // query
    return count, query, size


def _layers(count: int, heads: int, size: int, positions: int) -> tuple[Layer, ...]:
    own = Layer("full", heads, size, size)
    cross = Layer("cross", heads, size, size, positions=positions)
    return (own, cross) * count


def _bart(fields: Fields) -> tuple[Layer, ...]:
    """BART and its kin, and Whisper: the encoder's positions are those of its own input."""
    count, heads, size = _sizes(fields, ("decoder_layers",), ("decoder_attention_heads",))
    positions = fields.need(
        "the encoder's positions",
        *(("max_source_positions",) if fields.has("max_source_positions") else _POSITIONS),
    )
    return _layers(count, heads, size, positions)


def _t5(fields: Fields) -> tuple[Layer, ...]:
    """T5 has relative positions: ``n_positions`` is the input length it was trained with."""
    decoder = ("num_decoder_layers",) if fields.has("num_decoder_layers") else ("num_layers",)
    count, heads, size = _sizes(fields, decoder, ("num_heads",))
    return _layers(count, heads, size, fields.need("the input length", "n_positions"))


_POSITIONS = ("max_position_embeddings",)
_BART = {"max_position_embeddings": 1024}

FAMILIES: dict[str, Family] = {
    **{
        name: Family(_bart, _BART, mlp="plain", tied=True)
        for name in ("bart", "blenderbot", "m2m_100", "marian", "mbart", "pegasus", "plbart")
    },
    **{
        name: Family(_t5, {"n_positions": 512}, mlp="plain", tied=True, positions=512)
        for name in ("mt5", "t5", "umt5", "longt5")
    },
    "whisper": Family(
        _bart,
        {"max_source_positions": 1500, "max_target_positions": 448},
        mlp="plain",
        tied=True,
    ),
}
