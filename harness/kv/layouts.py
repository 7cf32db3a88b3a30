"""What each cache layout sets aside for one request, beside what the request needs.

``paged`` is vLLM's. The contiguous layouts reserve K and V of a whole length up front:
``contiguous-max`` of max_model_len, ``contiguous-pow2`` of the next power of two,
``contiguous-exact`` of exactly prompt + output. ``dynamic`` grows with every token by
concatenation: while one layer's K (then V) is copied, old and new copy live together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from harness.kv.bytes import fixed_bytes_per_request, layer_bytes, needed_bytes
from harness.kv.dtypes import KvDtype, resolve
from harness.kv.engine import Engine
from harness.kv.paged import PagedLayout, paged_layout
from harness.kv.spec import ModelSpec

LayoutName = Literal["paged", "contiguous-max", "contiguous-pow2", "contiguous-exact", "dynamic"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)


@dataclass(frozen=True)
class Costs:
    """Everything that prices a request: the model, its KV dtype, and the engine's settings."""

    spec: ModelSpec
    kv_dtype: str
    engine: Engine
    paged: PagedLayout

    @property
    def dtype(self) -> KvDtype:
        """The resolved KV dtype."""
        return resolve(self.kv_dtype, self.spec.dtype)

    def needed(self, tokens: int) -> int:
        """Bytes that one request of ``tokens`` tokens truly needs on one rank."""
        return needed_bytes(self.spec, tokens, self.kv_dtype, self.engine.tp)

    def reserved(self, layout: LayoutName, tokens: int) -> int:
        """Bytes that ``layout`` sets aside for one request of ``tokens`` tokens on one rank."""
        if layout == "paged":
            return self.paged.blocks_per_request(tokens, self.engine) * self.paged.block_bytes
        if layout == "contiguous-max":
            return self.needed(max(tokens, self.engine.max_model_len))
        if layout == "contiguous-pow2":
            return self.needed(next_power_of_two(tokens))
        if layout == "contiguous-exact":
            return self.needed(tokens)
        return self.needed(tokens) + self.transient(tokens)

    def transient(self, tokens: int) -> int:
        """The copy that concatenation makes of one layer's K (of the costliest layer)."""
        return max(
            (
                layer.tokens_held(tokens)
                * layer_bytes(layer, self.spec, self.dtype, self.engine.tp)
                * layer.k_dim
                // (layer.k_dim + layer.v_dim)
                for layer in self.spec.growing
            ),
            default=0,
        )

    def fits(self, layout: LayoutName, tokens: int, pool_bytes: int) -> int:
        """Requests of ``tokens`` tokens that ``pool_bytes`` hold at once; 0 beyond the context."""
        if tokens > self.engine.max_model_len:
            return 0
        if layout == "paged":
            usable = max(0, pool_bytes // self.paged.block_bytes - 1)
            return usable // self.paged.blocks_per_request(tokens, self.engine)
        return pool_bytes // self.reserved(layout, tokens)

    @property
    def fixed(self) -> int:
        """Bytes of a request that do not depend on its length, on one rank."""
        return fixed_bytes_per_request(self.spec, self.kv_dtype, self.engine.tp)


def costs(spec: ModelSpec, kv_dtype: str, engine: Engine) -> Costs:
    """Price a model under an engine's settings; raises OptionError for an impossible split."""
    paged = paged_layout(spec, resolve(kv_dtype, spec.dtype), engine)
    return Costs(spec, kv_dtype, engine, paged)


def next_power_of_two(tokens: int) -> int:
    """The smallest power of two that is at least ``tokens``."""
    return 1 << max(0, tokens - 1).bit_length()
