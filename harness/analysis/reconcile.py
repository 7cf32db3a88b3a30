"""Needed -> used -> reserved -> device: each difference attributed, the rest called unexplained.

The two sides share no source. Measured are the server's own bytes: for vLLM its byte budget over
its block count times the blocks in use, for the contiguous server the bytes of its storages, for
a device what it or its process reports. Predicted is what the model's config says of the tokens
that the client's records show to be held at the same moments (``harness.analysis.holdings``).
What was not measured is absent and named; nothing is filled up with what is left over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.gauges import at_times, mean_at
from harness.analysis.matching import NO_THEORY, Matched
from harness.analysis.reconcile_device import device_stage
from harness.analysis.reconcile_layout import Expected, Steps
from harness.analysis.reconcile_theory import KvTheory, quantized_share
from harness.analysis.reconcile_types import (
    Evidence,
    Reason,
    Reconciled,
    Stage,
    Step,
    Unreconciled,
)
from harness.analysis.table import Floats
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import BackendSeries, KvPool
from harness.records import CellKey


def reconcile_cell(
    cell: CellKey,
    found: Matched | str,
    series: BackendSeries | None,
    info: BackendInfo,
    theory: KvTheory | None,
) -> Reconciled | Unreconciled:
    """The memory of one cell explained, or why it cannot be; ``found`` comes from ``match``."""
    if isinstance(found, str) or series is None or theory is None:
        return Unreconciled(cell, found if isinstance(found, str) else NO_THEORY)
    absent: list[str] = []
    measured = _measured_steps(series, found.times, theory, info)
    needed_bytes = _mean([item.needed for item in found.expected])
    steps = _mean_steps(needed_bytes, found.expected, measured)
    needed = round(needed_bytes)
    used_bytes = round(float(found.used.mean()))
    shared = _shared(found, info)
    used = Stage(
        name="used",
        start_bytes=needed - (shared or 0),
        steps=steps,
        end_bytes=used_bytes,
        scatter_bytes=_scatter(found, measured, shared),
    )
    stages = [used]
    reserved = _reserved_stage(found, series, info, used_bytes, absent)
    if reserved is not None:
        stages.append(reserved)
    device = device_stage(series, found.times, info, theory, used, reserved, absent)
    if device is not None:
        stages.append(device)
    return Reconciled(
        cell=cell,
        moments=len(found.moments),
        samples=found.samples,
        requests=_mean([float(moment.held.size) for moment in found.moments]),
        tokens=_mean([float(moment.held.sum()) for moment in found.moments]),
        theory=theory.source,
        bytes_per_token=theory.needed_token_bytes,
        needed_bytes=needed - (shared or 0),
        shared_bytes=shared,
        stages=tuple(stages),
        absent=tuple(absent),
    )


@dataclass(frozen=True)
class MeasuredSteps:
    """Steps of the used stage that the server measures itself, means over the moments."""

    steps: tuple[tuple[Reason, float], ...] = ()
    #: steps that a measured one replaces
    replaces: frozenset[Reason] = frozenset()


def _measured_steps(
    series: BackendSeries, times: Floats, theory: KvTheory, info: BackendInfo
) -> MeasuredSteps:
    """Padding, and what a quantized cache keeps beside its payload, where they are stated."""
    if info.kind == "vllm":
        return _remainder(series.pool, times, series, theory, info)
    found: list[tuple[Reason, float]] = []
    padding = mean_at(series, names.KV_PADDING_BYTES, times)
    if padding is not None and not info.mode.startswith("quantized"):
        found.append(("padding", padding))
    if info.kv_bits is not None:
        found += _quantized_steps(series, times, 1.0 - quantized_share(info))
    return MeasuredSteps(tuple(found), frozenset(name for name, _ in found))


def _quantized_steps(
    series: BackendSeries, times: Floats, spared: float
) -> list[tuple[Reason, float]]:
    """Scales, and what is at full precision beyond its share at the width of the payload."""
    found: list[tuple[Reason, float]] = []
    scales = mean_at(series, names.KV_SCALES_BYTES, times)
    residual = mean_at(series, names.KV_RESIDUAL_BYTES, times)
    if scales is not None:
        found.append(("scales", scales))
    if residual is not None:
        # needed has these tokens at the width of the payload already; a prompt that is being
        # read is at full precision, too
        full = mean_at(series, names.KV_FULL_BYTES, times) or 0.0
        found.append(("residual", (residual + full) * spared))
    return found


def _remainder(
    pool: KvPool | None,
    times: Floats,
    series: BackendSeries,
    theory: KvTheory,
    info: BackendInfo,
) -> MeasuredSteps:
    """What a budget has beyond whole blocks: spread over the blocks, it is in their bytes."""
    price = theory.price
    ratio = mean_at(series, names.KV_USAGE_RATIO, times)
    if pool is None or pool.total_bytes is None or not pool.num_blocks or ratio is None:
        return MeasuredSteps()
    block = price.paged.block_bytes if price else (info.block_size or 0) * theory.token_bytes
    rest = pool.total_bytes - pool.num_blocks * block
    if not 0 < rest < block * pool.engines:
        return MeasuredSteps()
    used_blocks = ratio * (pool.usable_blocks or 0)
    return MeasuredSteps((("budget_remainder", rest * used_blocks / pool.num_blocks),))


def _mean_steps(
    needed: float, expected: Sequence[Expected], measured: MeasuredSteps
) -> tuple[Step, ...]:
    """Each step's mean over the moments, the measured ones beside; those of 0 are left out.

    The running sum is what is rounded, so that the steps add up to the rounded whole.
    """
    totals: Steps = {}
    for item in expected:
        for reason, amount in item.steps.items():
            totals[reason] = totals.get(reason, 0.0) + amount / len(expected)
    found: list[tuple[Reason, float, Evidence]] = [
        (reason, amount, "worked out")
        for reason, amount in totals.items()
        if reason not in measured.replaces
    ]
    found += [(reason, amount, "measured") for reason, amount in measured.steps]
    steps: list[Step] = []
    total = needed
    for reason, amount, evidence in found:
        whole = round(total + amount) - round(total)
        total += amount
        if whole > 0:
            steps.append(Step(reason, whole, evidence))
    return tuple(steps)


def _scatter(found: Matched, measured: MeasuredSteps, shared: int | None) -> int:
    """Mean size of what is unexplained at each moment; measured steps by their means."""
    own = np.array(
        [
            item.used - sum(item.steps.get(reason, 0.0) for reason in measured.replaces)
            for item in found.expected
        ]
    )
    known = own + sum(amount for _, amount in measured.steps) - (shared or 0)
    return round(float(np.abs(found.used - known).mean()))


def _shared(found: Matched, info: BackendInfo) -> int | None:
    """Bytes that shared prefixes save: what is missing, as far as cached tokens account for it.

    Of the prompt tokens that came out of the cache all but the longest such prefix can be the
    blocks of another request in flight. None where no request had any.
    """
    if info.kind != "vllm" or not any(moment.cached.any() for moment in found.moments):
        return None
    saved = []
    for moment, item, used in zip(found.moments, found.expected, found.used, strict=True):
        cached = moment.cached[moment.stored > 0]
        tokens = float(moment.held.sum())
        most = float(cached.sum() - cached.max(initial=0.0)) * item.needed / tokens
        saved.append(min(most, max(0.0, item.used - float(used))))
    return round(_mean(saved))


def _reserved_stage(
    found: Matched,
    series: BackendSeries,
    info: BackendInfo,
    used_bytes: int,
    absent: list[str],
) -> Stage | None:
    if info.kind == "vllm":
        return _pool_stage(series.pool, found, series, used_bytes, absent)
    reserved = at_times(series, names.KV_RESERVED_BYTES, found.times)
    if reserved is None:
        absent.append("reserved: the server states no bytes reserved")
        return None
    promise = _mean([item.promise or 0.0 for item in found.expected])
    steps = (Step("promise", round(promise), "worked out"),) if round(promise) else ()
    return Stage("reserved", used_bytes, steps, round(float(reserved.mean())))


def _pool_stage(
    pool: KvPool | None,
    found: Matched,
    series: BackendSeries,
    used_bytes: int,
    absent: list[str],
) -> Stage | None:
    """The pool whole: blocks that are free, and the null block that no request gets."""
    ratio = at_times(series, names.KV_USAGE_RATIO, found.times)
    if pool is None or pool.block_bytes is None or pool.total_bytes is None or ratio is None:
        absent.append("reserved: the server states neither the bytes of its pool nor its use")
        return None
    free = float((1.0 - ratio).mean()) * (pool.usable_blocks or 0) * pool.block_bytes
    null = round(pool.engines * pool.block_bytes)
    steps = [Step("null_block", null, "measured")]
    if round(free) > 0:
        steps.append(Step("free_blocks", round(free), "measured"))
    return Stage("reserved", used_bytes, tuple(steps), pool.total_bytes)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.asarray(values, dtype=np.float64)))
