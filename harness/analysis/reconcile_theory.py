"""What a model's config says that tokens need, beside what an engine's dtype and split make of it.

``needed`` is per token and request: K and V of every layer in the narrower of the config's and
the server's dtype, over all ranks without copies, a window's layer as far as its window. Two
differences are not the layout's: a wider dtype, and KV heads that ranks hold copies of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis.reconcile_types import TheorySource
from harness.analysis.table import Floats
from harness.errors import ModelConfigError, UsageError
from harness.kv.bytes import fixed_bytes_per_request, layer_bytes
from harness.kv.dtypes import PLAIN_BITS, resolve
from harness.kv.engine import EngineOptions, resolve_engine
from harness.kv.layouts import Costs, costs
from harness.kv.spec import ModelSpec, read_spec, text_config
from harness.kv.weights import count_parameters, weight_bits
from harness.manifest import BackendInfo


@dataclass(frozen=True)
class LayerPart:
    """Layers that keep tokens alike: their bytes per token together, and their window."""

    token_bytes: float
    #: tokens; None keeps all
    window: int | None = None
    #: a chunk keeps its whole length, a sliding window one token less than it can see
    sliding: bool = True

    def kept(self, stored: Floats) -> Floats:
        """Tokens that the next step needs of those that were stored, shape as ``stored``.

        A sliding window of W tokens sees the newest token, which is not stored yet, and W - 1
        before it.
        """
        if self.window is None:
            return stored
        return np.minimum(stored, float(self.window - 1 if self.sliding else self.window))


@dataclass(frozen=True)
class KvTheory:
    """The predicted side of a reconciliation; bytes are those of one rank."""

    source: TheorySource
    #: in the dtype in which the server stores them, with the heads that a rank holds
    parts: tuple[LayerPart, ...]
    #: constant states and cross attention
    fixed_bytes: float = 0.0
    #: bytes in the narrower dtype over bytes as stored
    dtype_ratio: float = 1.0
    #: a rank's share of one copy over what it holds
    copy_ratio: float = 1.0
    #: the engine's layout; None where only the bytes per token are known
    price: Costs | None = None
    #: of all parameters; None when the config does not tell
    weights_bytes: int | None = None

    @property
    def token_bytes(self) -> float:
        """Bytes that a request's first tokens cost each, as stored."""
        return sum(part.token_bytes for part in self.parts)

    @property
    def needed_token_bytes(self) -> float:
        """The same by theory alone: narrow dtype, one copy."""
        return self.token_bytes * self.dtype_ratio * self.copy_ratio

    @property
    def windowed(self) -> bool:
        """Whether some layers let go of tokens."""
        return any(part.window is not None for part in self.parts)

    def stored_bytes(self, stored: Floats) -> float:
        """Bytes of what the next step needs, as the server stores it; ``stored`` per request."""
        grown = sum(float(part.kept(stored).sum()) * part.token_bytes for part in self.parts)
        return grown + self.fixed_bytes * stored.size

    def with_window(self, window: int) -> KvTheory:
        """The same with a sliding window over every layer."""
        parts = tuple(
            replace(part, window=min(window, part.window or window), sliding=True)
            for part in self.parts
        )
        return replace(self, parts=parts, price=None)

    def all_full(self) -> KvTheory:
        """The same with blocks for all tokens in every layer, as without a hybrid KV manager."""
        if self.price is None:
            return self
        engine = replace(self.price.engine, hybrid_manager=False)
        return replace(self, price=costs(self.price.spec, self.price.kv_dtype, engine))

    def times(self, share: float) -> KvTheory:
        """The same with each token at ``share`` of its bytes: a quantized payload."""
        parts = tuple(replace(part, token_bytes=part.token_bytes * share) for part in self.parts)
        return replace(self, parts=parts, price=None)


def quantized_share(info: BackendInfo) -> float:
    """Bits of a quantized element over bits of one that is not; 1 where nothing is quantized."""
    if not info.kv_bits or info.kind != "contiguous":
        return 1.0
    return info.kv_bits / PLAIN_BITS.get(info.dtype or "", 16)


def in_mode(theory: KvTheory, info: BackendInfo) -> KvTheory:
    """The theory of a cache mode that changes what is kept: its window, its bits per element."""
    if info.kind != "contiguous":
        return theory
    window = info.sliding_window
    own = {part.window for part in theory.parts}
    # a model with windows by its config keeps them; any other window is put over all layers
    if info.mode.startswith("sliding") and window and window not in own:
        theory = theory.with_window(window)
    if info.mode.startswith("quantized"):
        theory = theory.times(quantized_share(info))
    return theory


def stated_theory(info: BackendInfo) -> KvTheory | None:
    """From the bytes per token that the server or its launch states; None without them."""
    if not info.kv_bytes_per_token:
        return None
    return in_mode(KvTheory("server", (LayerPart(float(info.kv_bytes_per_token)),)), info)


def config_theory(
    config: Mapping[str, object], info: BackendInfo, kv_dtype: str | None = None, tp: int = 1
) -> KvTheory:
    """From a model's config; raises UsageError for one that cannot be computed.

    ``kv_dtype`` overrules the dtype that the server states; ``tp`` is its tensor-parallel size.
    """
    spec = read_spec(config)
    if spec.status != "known":
        raise ModelConfigError(
            f"the KV cache of {spec.model_type or 'this architecture'} is not known"
        )
    own = spec.dtype or "auto"
    dtype = kv_dtype or info.dtype or "auto"
    held = _token_bytes(spec, dtype, tp)
    found = KvTheory(
        source="config",
        parts=_parts(spec, dtype, tp),
        fixed_bytes=float(fixed_bytes_per_request(spec, dtype, tp)),
        dtype_ratio=min(1.0, _token_bytes(spec, own, tp) / held) if own != "auto" and held else 1.0,
        copy_ratio=_token_bytes(spec, dtype, 1) / tp / held if held else 1.0,
        price=_price(spec, info, dtype, tp),
        weights_bytes=_weights(config, spec, info.dtype),
    )
    return in_mode(found, info)


def _parts(spec: ModelSpec, kv_dtype: str, tp: int) -> tuple[LayerPart, ...]:
    dtype = resolve(kv_dtype, spec.dtype)
    totals: dict[tuple[int | None, bool], float] = {}
    for layer in spec.growing:
        key = (layer.window, layer.kind == "sliding")
        totals[key] = totals.get(key, 0.0) + layer_bytes(layer, spec, dtype, tp)
    return tuple(LayerPart(size, window, sliding) for (window, sliding), size in totals.items())


def _token_bytes(spec: ModelSpec, kv_dtype: str, tp: int) -> float:
    return sum(part.token_bytes for part in _parts(spec, kv_dtype, tp))


def _price(spec: ModelSpec, info: BackendInfo, kv_dtype: str, tp: int) -> Costs | None:
    """The engine's layout, where its options are known well enough to work it out."""
    options = EngineOptions(
        device="gpu" if info.gpu_uuids else "cpu",
        tp=tp,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_num_seqs=info.max_num_seqs,
    )
    try:
        return costs(spec, kv_dtype, resolve_engine(spec, options))
    except UsageError:
        return None


def _weights(config: Mapping[str, object], spec: ModelSpec, dtype: str | None) -> int | None:
    text = text_config(config)
    try:
        parameters = count_parameters(text, spec)
        return round(parameters.total * weight_bits(text, dtype or spec.dtype or "") / 8)
    except ModelConfigError:
        return None
