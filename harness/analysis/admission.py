"""What keeps requests out of the running batch at one level.

vLLM does not say why a request waits (its reason ``capacity`` also covers max_num_seqs),
so the samples of the window are asked one by one. A sample shows the KV pool as the limit
when a request waits, fewer than max_num_seqs run (or the limit is unknown), and the free
blocks are fewer than ceil(prompt / block size), what the next prompt needs. The contiguous
server counts itself the requests that its KV budget keeps out (``waiting_for_kv``).

A level is memory-bound when at least 10 % of the window's samples, and at least two, show
it, when preemptions rise inside the window, or when the contiguous server refuses requests
while others wait for KV. Waiting with max_num_seqs running is ``scheduler_limit``; waiting
with blocks and seats free is a prefill queue, the token budget of a step: ``compute``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.analysis.summary_types import Admission, AdmissionVerdict, Counts, Window
from harness.analysis.table import Bools, Floats
from harness.observe import names
from harness.observe.series import BackendSeries, Series
from harness.records import BackendInfo

#: Share of the samples, and number of them, that must show a queue.
SAMPLE_SHARE, MIN_SAMPLES = 0.10, 2


def judge_admission(
    info: BackendInfo,
    prompt_tokens: int,
    window: Window,
    counts: Counts,
    series: BackendSeries | None,
) -> AdmissionVerdict:
    """What kept requests out inside the window, or why that cannot be said."""
    if window.span is None:
        return AdmissionVerdict("unknown", "the window never opened")
    if series is None or series.get(names.WAITING) is None:
        return AdmissionVerdict("unknown", "no metric tells how many requests wait")
    samples = _samples(info, series, window.span)
    if samples.waiting.size < MIN_SAMPLES:
        return AdmissionVerdict(
            "unknown", f"{samples.waiting.size} samples in the window; {MIN_SAMPLES} are needed"
        )
    refused = _refused_for_memory(info, samples, counts)
    if refused is not None:
        return refused
    preempted = series.get(names.PREEMPTIONS_TOTAL)
    rise = preempted.increase(*window.span) if preempted is not None else None
    return _from_samples(samples, prompt_tokens, rise or 0.0)


@dataclass(frozen=True)
class _Samples:
    """Gauges at the times of ``waiting``, shape [n] each; None where not exposed."""

    waiting: Floats
    running: Floats | None
    waiting_for_kv: Floats | None
    free_blocks: Floats | None
    block_size: int | None
    max_num_seqs: int | None


def _samples(info: BackendInfo, series: BackendSeries, span: tuple[float, float]) -> _Samples:
    waiting = series.values[names.WAITING].window(*span)
    usage = _at(series.get(names.KV_USAGE_RATIO), waiting.t_s)
    pool = series.pool
    usable = pool.usable_blocks if pool is not None else None
    if usable is None and info.num_blocks is not None:
        usable = info.num_blocks - 1
    free = None
    if usage is not None and usable is not None:
        # usage is 1 - free / usable: the product is a whole number but for rounding
        free = np.rint((1.0 - usage) * usable)
    return _Samples(
        waiting=waiting.v,
        running=_at(series.get(names.RUNNING), waiting.t_s),
        waiting_for_kv=_at(series.get(names.WAITING_FOR_KV), waiting.t_s),
        free_blocks=free,
        block_size=(pool.block_size if pool is not None else None) or info.block_size,
        max_num_seqs=info.max_num_seqs,
    )


def _at(series: Series | None, times_s: Floats) -> Floats | None:
    """The latest value at or before each time, NaN before the first one."""
    if series is None or not len(series):
        return None
    index = np.searchsorted(series.t_s, times_s, side="right") - 1
    return np.where(index >= 0, series.v[np.maximum(index, 0)], np.nan)


def _refused_for_memory(
    info: BackendInfo, samples: _Samples, counts: Counts
) -> AdmissionVerdict | None:
    """A verdict when the contiguous server turned requests away while KV was the limit."""
    rejected = dict(counts.by_class).get("rejected", 0)
    if not rejected or info.kind != "contiguous":
        return None
    queued = samples.waiting_for_kv is not None and bool((samples.waiting_for_kv >= 1).any())
    said = any(
        word in (error.text or "").lower()
        for error in counts.errors
        if error.outcome == "rejected"
        for word in ("kv", "memory")
    )
    if not queued and not said:
        return None
    return AdmissionVerdict("kv_memory", f"{rejected} requests were refused for want of KV memory")


def _from_samples(samples: _Samples, prompt_tokens: int, preemptions: float) -> AdmissionVerdict:
    n = samples.waiting.size
    waits = samples.waiting >= 1
    seated = _all_seats_taken(samples, waits)
    starved = _starved(samples, prompt_tokens, waits & ~seated)
    if _counts(starved):
        return AdmissionVerdict("kv_memory", _starved_text(samples, starved, prompt_tokens))
    if preemptions > 0:
        return AdmissionVerdict("kv_memory", f"{preemptions:.0f} preemptions inside the window")
    rest = waits & ~starved
    if not _counts(rest):
        if not waits.any():
            return AdmissionVerdict("free", f"no request waits in any of {n} samples")
        return AdmissionVerdict("free", f"requests wait in only {int(waits.sum())} of {n} samples")
    return AdmissionVerdict(_other_limit(samples, rest, seated), _rest_text(samples, rest))


def _all_seats_taken(samples: _Samples, waits: Bools) -> Bools:
    if samples.max_num_seqs is None or samples.running is None:
        return np.zeros(waits.size, dtype=np.bool_)
    return np.asarray(samples.running >= samples.max_num_seqs, dtype=np.bool_)


def _starved(samples: _Samples, prompt_tokens: int, waits: Bools) -> Bools:
    """Samples in which a request waits for KV memory."""
    if samples.waiting_for_kv is not None:
        return np.asarray(samples.waiting_for_kv >= 1, dtype=np.bool_)
    if samples.free_blocks is None or samples.block_size is None:
        return np.zeros(waits.size, dtype=np.bool_)
    needed = math.ceil(prompt_tokens / samples.block_size)
    with np.errstate(invalid="ignore"):
        return np.asarray(waits & (samples.free_blocks < needed), dtype=np.bool_)


def _counts(shown: Bools) -> bool:
    return bool(shown.sum() >= MIN_SAMPLES and shown.mean() >= SAMPLE_SHARE)


def _other_limit(samples: _Samples, rest: Bools, seated: Bools) -> Admission:
    if float(seated[rest].mean()) >= 0.5:
        return "scheduler_limit"
    if samples.waiting_for_kv is None and samples.free_blocks is None:
        return "unknown"
    if samples.max_num_seqs is None and samples.running is not None:
        # an unstated limit shows as the same number running whenever a request waits
        return "scheduler_limit" if np.ptp(samples.running[rest]) == 0 else "compute"
    return "compute"


def _starved_text(samples: _Samples, starved: Bools, prompt_tokens: int) -> str:
    n, shown = starved.size, int(starved.sum())
    if samples.waiting_for_kv is not None:
        most = samples.waiting_for_kv[starved].max()
        return (
            f"up to {most:.0f} requests wait for KV memory, in {shown} of {n} samples"
            + _running(samples, starved)
        )
    text = (
        f"up to {samples.waiting[starved].max():.0f} requests wait in {shown} of {n} samples"
        f"{_running(samples, starved)}"
    )
    if samples.free_blocks is None or samples.block_size is None:
        return text
    needed = math.ceil(prompt_tokens / samples.block_size)
    most = samples.free_blocks[starved].max()
    return f"{text}, with at most {most:.0f} blocks free; the next prompt needs {needed}"


def _rest_text(samples: _Samples, rest: Bools) -> str:
    free = ""
    if samples.free_blocks is not None:
        free = f", with {samples.free_blocks[rest].min():.0f} or more blocks free"
    return (
        f"up to {samples.waiting[rest].max():.0f} requests wait in {int(rest.sum())} of "
        f"{rest.size} samples{_running(samples, rest)}{free}"
    )


def _running(samples: _Samples, shown: Bools) -> str:
    if samples.running is None:
        return ""
    seats = f" (max_num_seqs {samples.max_num_seqs})" if samples.max_num_seqs is not None else ""
    return f" while {samples.running[shown].max():.0f} run{seats}"
