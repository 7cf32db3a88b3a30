"""What each cache layout sets aside for one request, beside what the request needs.

``paged`` is vLLM's. The contiguous layouts reserve K and V of a whole length up front:
``contiguous-max`` of max_model_len, ``contiguous-pow2`` of the next power of two but never
more than max_model_len, ``contiguous-exact`` of exactly prompt + output.

``dynamic`` grows with every token by concatenation. What it sets aside is what the
contiguous server promises, prompt + output, and its figure of requests is what that
server admits. While torch.cat copies one layer's K (then its V), old and new live
together: the peak stands beside what is set aside, and so does the lower number of
requests whose peak still fits the same bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from harness.errors import ModelConfigError
from harness.kv.bytes import fixed_bytes_per_request, layer_bytes
from harness.kv.dtypes import KvDtype, resolve
from harness.kv.engine import Engine
from harness.kv.layers import Layer
from harness.kv.paged import PagedLayout, paged_layout
from harness.kv.reserve import Reserve, reserved_tokens
from harness.kv.spec import ModelSpec

LayoutName = Literal["paged", "contiguous-max", "contiguous-pow2", "contiguous-exact", "dynamic"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
_RESERVES: dict[LayoutName, Reserve] = {
    "contiguous-max": "max",
    "contiguous-pow2": "pow2",
    "contiguous-exact": "exact",
    "dynamic": "exact",
}
NOT_SERVED = (
    "the contiguous server serves full attention only and refuses this model: the contiguous and "
    "dynamic figures are what its layers would take"
)


@dataclass(frozen=True)
class Costs:
    """Everything that prices a request: the model, its KV dtype, and the engine's settings."""

    spec: ModelSpec
    kv_dtype: str
    engine: Engine
    paged: PagedLayout

    @cached_property
    def dtype(self) -> KvDtype:
        """The resolved KV dtype."""
        return resolve(self.kv_dtype, self.spec.dtype)

    @cached_property
    def fixed(self) -> int:
        """Bytes of a request that do not depend on its length, on one rank."""
        return fixed_bytes_per_request(self.spec, self.kv_dtype, self.engine.tp)

    @cached_property
    def _kinds(self) -> tuple[tuple[Layer, int, int], ...]:
        """Each kind of growing layer, how many there are, and one's bytes per token."""
        return tuple(
            (layer, count, layer_bytes(layer, self.spec, self.dtype, self.engine.tp))
            for layer, count in Counter(self.spec.growing).items()
        )

    def needed(self, tokens: int) -> int:
        """Bytes that one request of ``tokens`` tokens truly needs on one rank."""
        grown = sum(layer.tokens_held(tokens) * count * each for layer, count, each in self._kinds)
        return grown + self.fixed

    def reserved(self, layout: LayoutName, tokens: int) -> int:
        """Bytes that ``layout`` sets aside for one request of ``tokens`` tokens on one rank."""
        if layout == "paged":
            return self.paged.blocks_per_request(tokens, self.engine) * self.paged.block_bytes
        return self.needed(reserved_tokens(_RESERVES[layout], tokens, self.engine.max_model_len))

    def peak(self, layout: LayoutName, tokens: int) -> int:
        """As ``reserved``, with the copy that ``dynamic`` makes for a moment."""
        copy = self.copied(tokens) if layout == "dynamic" else 0
        return self.reserved(layout, tokens) + copy

    def copied(self, tokens: int) -> int:
        """The copy that concatenation makes of one layer's K or V (of the costliest one)."""
        return max(
            (
                layer.tokens_held(tokens)
                * each
                * max(layer.k_dim, layer.v_dim)
                // (layer.k_dim + layer.v_dim)
                for layer, _, each in self._kinds
            ),
            default=0,
        )

    def fits(self, layout: LayoutName, tokens: int, pool_bytes: int) -> int:
        """Requests of ``tokens`` tokens that ``pool_bytes`` hold at once."""
        if layout == "paged":
            usable = max(0, pool_bytes // self.paged.block_bytes - 1)
            return usable // self.paged.blocks_per_request(tokens, self.engine)
        return pool_bytes // self.reserved(layout, tokens)


def costs(spec: ModelSpec, kv_dtype: str, engine: Engine) -> Costs:
    """Price a model under an engine's settings; raises OptionError for an impossible split.

    A config whose layers keep nothing at all is a ModelConfigError.
    """
    paged = paged_layout(spec, resolve(kv_dtype, spec.dtype), engine)
    price = Costs(spec, kv_dtype, engine, paged)
    if not paged.block_bytes or not price.needed(1):
        raise ModelConfigError("config: the sizes of its layers give a cache of 0 bytes")
    return price
