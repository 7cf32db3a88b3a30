"""What a server should use and reserve for what its requests hold, difference by difference.

Worked out from the client's records and from theory; no byte that a server measured comes in.
Each layout is a function from one moment to the steps above ``needed``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.analysis.holdings import Moment
from harness.analysis.reconcile_theory import KvTheory, quantized_share
from harness.analysis.reconcile_types import Reason
from harness.analysis.table import Floats
from harness.kv.engine import Engine
from harness.kv.modes import read_mode
from harness.kv.paged import Group, PagedLayout
from harness.manifest import BackendInfo

#: Numbers that share a scale and a zero, and tokens at which a residual is quantized.
_GROUP_SIZE, _RESIDUAL_TOKENS = 64, 128
#: caches of a contiguous server that hold anything
_CACHES = ("static", "dynamic", "sliding", "quantized")
#: Bytes by reason, none below 0.
Steps = dict[Reason, float]


@dataclass(frozen=True)
class Expected:
    """What one moment's requests come to; bytes."""

    needed: float
    #: from needed to used
    steps: Steps
    #: from used to reserved; None where the layout reserves a pool and nothing per request
    promise: float | None = None
    #: tokens that there is room for in what is used; None where layers differ in it
    places: float | None = None

    @property
    def used(self) -> float:
        """Needed and all above it."""
        return self.needed + sum(self.steps.values())


Layout = Callable[[Moment], Expected]


def layout_of(info: BackendInfo, theory: KvTheory) -> Layout | str:
    """The layout of a backend, or why its memory cannot be worked out."""
    if info.kind == "vllm":
        return _paged(info, theory)
    if info.kind != "contiguous":
        return f"how a {info.kind} server lays its cache out is not known here"
    mode = read_mode(info.mode)
    if mode is None or mode.cache not in _CACHES:
        return f"the cache mode {info.mode} is not known here"
    if mode.batching == "static" or mode.cache in ("dynamic", "sliding"):
        return _padded(theory)
    if mode.cache == "quantized":
        return _quantized(info, theory)
    if not info.max_model_len:
        return "the server states no max_model_len"
    if mode.reserve == "max":
        return _slots(info, theory)
    return _regions(theory, info.max_model_len, mode.reserve)


def base(theory: KvTheory, stored: Floats) -> tuple[float, Steps]:
    """Needed bytes of tokens held, and what a wider dtype and copies of heads add to them."""
    whole = theory.stored_bytes(stored)
    one_copy = whole * theory.copy_ratio
    needed = one_copy * theory.dtype_ratio
    return needed, {"dtype": one_copy - needed, "replication": whole - one_copy}


def _paged(info: BackendInfo, theory: KvTheory) -> Layout | str:
    price = theory.price
    if price is not None and (theory.windowed or len(price.paged.groups) > 1 or theory.fixed_bytes):
        paged, engine = price.paged, price.engine
        return lambda moment: _grouped(moment, theory, paged, engine)
    if not info.block_size:
        return "the server states no block size"
    size = float(info.block_size)

    def expected(moment: Moment) -> Expected:
        needed, steps = base(theory, moment.held)
        places = np.ceil(moment.held / size) * size
        steps["block_rounding"] = float((places - moment.held).sum()) * theory.token_bytes
        return Expected(needed, steps, places=float(places.sum()))

    return expected


def _grouped(moment: Moment, theory: KvTheory, paged: PagedLayout, engine: Engine) -> Expected:
    """Several groups of layers over one pool: each takes blocks of its own, all of one size."""
    needed, steps = base(theory, moment.held)
    rounding = kinds = total = places = 0.0
    for group in paged.groups:
        blocks = _blocks(group, moment.held, engine)
        total += float(blocks.sum()) * paged.block_bytes
        kinds += float(blocks.sum()) * (paged.block_bytes - group.block_bytes)
        if group.layer.kind in ("state", "cross"):
            continue
        places = max(places, float(blocks.sum()) * group.block_size)
        each = group.block_bytes / group.block_size
        within = moment.held <= (group.layer.window or np.inf)
        spare = blocks * group.block_size - moment.held
        rounding += float(np.maximum(spare[within], 0.0).sum()) * each
    steps["block_rounding"] = rounding
    steps["other_layers"] = kinds
    # what is left of the blocks is held beyond the windows, or pads a state to its page
    rest: Reason = "window" if theory.windowed else "other_layers"
    steps[rest] = steps.get(rest, 0.0) + max(0.0, total - needed - sum(steps.values()))
    return Expected(needed, steps, places=None if theory.windowed else places)


def _blocks(group: Group, stored: Floats, engine: Engine) -> Floats:
    """Blocks of one group for requests of that many tokens, shape as ``stored``."""
    if group.layer.kind in ("state", "cross"):
        return np.full(stored.shape, float(group.blocks(1, engine)))
    blocks = np.ceil(stored / group.block_size)
    if group.layer.window:
        blocks = np.minimum(blocks, float(group.window_blocks(engine)))
    return np.asarray(blocks, dtype=np.float64)


def _slots(info: BackendInfo, theory: KvTheory) -> Layout:
    """A slot of max_model_len for each request; one that is taken is used whole."""
    slot = float(info.max_model_len or 0)

    def expected(moment: Moment) -> Expected:
        needed, steps = base(theory, moment.held)
        places = moment.held.size * slot
        steps["slot"] = max(0.0, places * theory.token_bytes - theory.stored_bytes(moment.held))
        begun = moment.stored.size - moment.held.size
        return Expected(needed, steps, begun * slot * theory.token_bytes, places)

    return expected


def _regions(theory: KvTheory, longest: int, reserve: str) -> Layout:
    """A region of an arena for each request, as long as it can become or the next power of two.

    Used are the tokens in it, reserved is all of it.
    """

    def expected(moment: Moment) -> Expected:
        needed, steps = base(theory, moment.held)
        regions = moment.promised
        if reserve == "pow2":
            powers = [1 << max(0, int(tokens) - 1).bit_length() for tokens in regions]
            regions = np.minimum(np.array(powers, dtype=np.float64), float(longest))
        promise = float(regions.sum()) * theory.token_bytes - theory.stored_bytes(moment.held)
        return Expected(needed, steps, max(0.0, promise), float(moment.held.sum()))

    return expected


def _padded(theory: KvTheory) -> Layout:
    """A padded batch: every row as long as the longest; promised is n times the longest."""

    def expected(moment: Moment) -> Expected:
        needed, steps = base(theory, moment.held)
        rows = moment.stored[moment.decoding > 0]
        longest = np.full(rows.shape, rows.max(initial=0.0))
        steps["padding"] = theory.stored_bytes(longest) - theory.stored_bytes(rows)
        used = needed + sum(steps.values())
        promise = moment.promised
        whole = theory.stored_bytes(np.full(promise.shape, promise.max(initial=0.0)))
        places = float(moment.held.sum() - rows.sum() + longest.sum())
        return Expected(needed, steps, max(0.0, whole - used), None if theory.windowed else places)

    return expected


def _quantized(info: BackendInfo, theory: KvTheory) -> Layout | str:
    """Each request by itself: a prompt is quantized whole, decoded tokens 128 at a time.

    ``theory`` is that of the payload. Each group of 64 numbers has a scale and a zero in the
    cache's own type (transformers 5.19, ``HQQQuantizedLayer`` and its defaults).
    """
    if not info.kv_bits:
        return "the server states no bits per element"
    payload = theory.token_bytes
    full = payload / quantized_share(info)
    scales = 2.0 * full / _GROUP_SIZE

    def bytes_of(tokens: Floats, residual: Floats) -> Floats:
        return (tokens - residual) * (payload + scales) + residual * full

    def expected(moment: Moment) -> Expected:
        needed, steps = base(theory, moment.held)
        holding = moment.stored > 0
        decoded = np.maximum(moment.held - moment.prompt[holding], 0.0)
        newest = np.where(moment.decoding[holding] > 0, decoded % _RESIDUAL_TOKENS, moment.held)
        steps["scales"] = float((moment.held - newest).sum()) * scales
        steps["residual"] = float(newest.sum()) * (full - payload)
        answer = moment.promised - moment.prompt
        most = bytes_of(moment.promised, np.minimum(answer, _RESIDUAL_TOKENS - 1.0))
        # one prompt at a time is read at full precision, which can be more than it comes to hold
        reading = float((moment.prompt * full - most).max(initial=0.0))
        promise = float(most.sum()) + reading - float(bytes_of(moment.held, newest).sum())
        return Expected(needed, steps, max(0.0, promise))

    return expected
