"""KV dtypes: how many bytes one token costs in one layer of one rank.

Quantised formats with inline scales follow vLLM's cache layouts: ``int8`` and ``int4``
keep one 4-byte scale per head for K and one for V (``int8_per_token_head``,
``int4_per_token_head``), ``fp8_ds_mla`` packs a latent of 512 + 64 elements into 656
bytes (512 in 8 bit, four 4-byte scales, 64 in 16 bit).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import OptionError
from harness.kv.layers import Layer, StatePart

#: bits per element of the dtypes without inline scales, by the names of configs and flags
PLAIN_BITS = {
    "float32": 32,
    "float": 32,
    "fp32": 32,
    "float16": 16,
    "fp16": 16,
    "half": 16,
    "bfloat16": 16,
    "bf16": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
}
SCALED_BITS = {
    "int8": 8,
    "int8_per_token_head": 8,
    "fp8_per_token_head": 8,
    "int4": 4,
    "int4_per_token_head": 4,
}
SCALE_BYTES = 4
DS_MLA = "fp8_ds_mla"
DS_MLA_DIM = 512 + 64
DS_MLA_BYTES = 512 + 4 * 4 + 64 * 2
KNOWN = ("auto", *PLAIN_BITS, *SCALED_BITS, DS_MLA)


@dataclass(frozen=True)
class KvDtype:
    """A resolved KV dtype: ``name`` is never ``auto``."""

    name: str
    #: the weights' dtype, which constant states use whatever the KV dtype is
    weights: str

    @property
    def element(self) -> str:
        """For a derivation: bytes per element, and scales when there are some."""
        if self.name == DS_MLA:
            return f"{DS_MLA_BYTES} B per token ({DS_MLA})"
        if self.name in SCALED_BITS:
            return f"{SCALED_BITS[self.name] / 8:g} B ({self.name}, + 4 B scale per head)"
        return f"{PLAIN_BITS[self.name] // 8} B ({self.name})"


def resolve(kv_dtype: str, weights_dtype: str | None) -> KvDtype:
    """The KV dtype by name; ``auto`` is the weights' dtype.

    Raises OptionError for a name that is not known, and for ``auto`` where the config
    states no dtype.
    """
    weights = (weights_dtype or "").removeprefix("torch.")
    name = kv_dtype.removeprefix("torch.")
    if name == "auto" and not weights:
        raise OptionError(
            "--kv-dtype", "auto", "a dtype by name: the config states none (fp16, bf16, fp32, ...)"
        )
    name = weights if name == "auto" else name
    if name not in KNOWN or name == "auto":
        raise OptionError("--kv-dtype", name, f"one of {', '.join(KNOWN)}")
    return KvDtype(name, weights if weights in PLAIN_BITS else "float16")


def cell_bytes(layer: Layer, kv_heads: int, dtype: KvDtype) -> int:
    """Bytes of one token in one layer, with ``kv_heads`` heads on the rank."""
    if dtype.name == DS_MLA:
        if layer.kind != "latent" or layer.k_dim != DS_MLA_DIM:
            raise OptionError(
                "--kv-dtype", DS_MLA, "another dtype: this one is for latents of 512 + 64 elements"
            )
        return DS_MLA_BYTES
    if dtype.name in PLAIN_BITS:
        return kv_heads * (layer.k_dim + layer.v_dim) * PLAIN_BITS[dtype.name] // 8
    if layer.kind == "latent":
        raise OptionError("--kv-dtype", dtype.name, "fp8, fp8_ds_mla, or a 16- or 32-bit dtype")
    bits = SCALED_BITS[dtype.name]
    # each of K and V is packed and scaled on its own
    return kv_heads * (layer.k_dim * bits // 8 + layer.v_dim * bits // 8 + 2 * SCALE_BYTES)


def state_bytes(parts: tuple[StatePart, ...], tp: int, dtype: KvDtype) -> int:
    """Bytes of a constant state on one rank; quantised KV dtypes do not touch it."""
    return sum(
        part.per_rank(tp) * PLAIN_BITS[dtype.weights if part.dtype == "auto" else part.dtype] // 8
        for part in parts
    )
