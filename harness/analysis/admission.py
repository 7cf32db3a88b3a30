"""What keeps requests out of the running batch at one level.

vLLM does not say why a request waits (its reason ``capacity`` also covers max_num_seqs),
so the samples of the window are asked one by one. A sample shows the KV pool as the limit
when a request waits, fewer than max_num_seqs run (or the limit is unknown), and the free
blocks are fewer than ceil(prompt / block size), what the next prompt needs (in a pool of
several groups of layers it needs more: ``harness.analysis.pool``). The contiguous server counts
itself the requests that its KV budget keeps out (``waiting_for_kv``).

A level is memory-bound when at least 10 % of the window's samples, and at least two, show
it, when preemptions rise inside the window, or when the contiguous server refuses requests
while others wait for KV. Waiting with max_num_seqs running is ``scheduler_limit``; waiting
with blocks and seats free is a prefill queue, the token budget of a step: ``compute``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.analysis.admission_types import AdmissionCounts
from harness.analysis.correlation import neighbours_alike
from harness.analysis.pool import blocks_for_prompt, several_groups
from harness.analysis.summary_types import Admission, AdmissionVerdict, Counts, Window
from harness.analysis.table import Bools, Floats
from harness.kv.capacity import ceil_div
from harness.kv.units import counted
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import BackendSeries, Series

#: Share of the samples, and number of them, that must show a queue.
SAMPLE_SHARE, MIN_SAMPLES = 0.10, 2


def judge_admission(
    info: BackendInfo,
    prompt_tokens: int,
    window: Window,
    counts: Counts,
    series: BackendSeries | None,
    output_tokens: int = 0,
) -> AdmissionVerdict:
    """What kept requests out inside the window, or why that cannot be said.

    ``prompt_tokens`` is the usual prompt; ``output_tokens`` the longest answer asked for.
    """
    if window.span is None:
        return AdmissionVerdict("unknown", "the window never opened")
    if series is None or series.get(names.WAITING) is None:
        return AdmissionVerdict("unknown", "no metric tells how many requests wait")
    samples = _samples(info, series, window.span, prompt_tokens, output_tokens)
    if samples.waiting.size < MIN_SAMPLES:
        return AdmissionVerdict(
            "unknown",
            f"{counted(samples.waiting.size, 'sample')} in the window; {MIN_SAMPLES} are needed",
        )
    preempted = series.get(names.PREEMPTIONS_TOTAL)
    rise = preempted.increase(*window.span) if preempted is not None else None
    refused = _refused_for_memory(info, samples, counts)
    verdict = refused or _from_samples(samples, rise or 0.0)
    return replace(verdict, counts=_counted_samples(samples, rise or 0.0))


def admission_counts(
    info: BackendInfo,
    series: BackendSeries,
    span: tuple[float, float],
    prompt_tokens: int,
    output_tokens: int = 0,
) -> AdmissionCounts | None:
    """The samples of a span counted, of a level that still runs too; None without any."""
    if series.get(names.WAITING) is None:
        return None
    preempted = series.get(names.PREEMPTIONS_TOTAL)
    rise = preempted.increase(*span) if preempted is not None else None
    samples = _samples(info, series, span, prompt_tokens, output_tokens)
    return _counted_samples(samples, rise or 0.0)


@dataclass(frozen=True)
class _Samples:
    """Gauges at the times of ``waiting``, shape [n] each; None where not exposed."""

    waiting: Floats
    running: Floats | None
    waiting_for_kv: Floats | None
    free_blocks: Floats | None
    #: blocks that the next prompt needs
    needed_blocks: Floats | None
    #: they are an estimate from below
    estimated: bool
    max_num_seqs: int | None


def _samples(
    info: BackendInfo,
    series: BackendSeries,
    span: tuple[float, float],
    prompt_tokens: int,
    output_tokens: int,
) -> _Samples:
    waiting = series.values[names.WAITING].window(*span)
    usage = _at(series.get(names.KV_USAGE_RATIO), waiting.t_s)
    pool = series.pool
    usable = pool.usable_blocks if pool is not None else None
    if usable is None and info.num_blocks is not None:
        usable = info.num_blocks - 1
    running = _at(series.get(names.RUNNING), waiting.t_s)
    block_size = (pool.block_size if pool is not None else None) or info.block_size
    free = needed = None
    shared = several_groups(pool, info.max_model_len)
    if usage is not None and usable is not None:
        # usage is 1 - free / usable: the product is a whole number but for rounding
        free = np.rint((1.0 - usage) * usable)
        if pool is not None and shared:
            needed = blocks_for_prompt(pool, prompt_tokens, output_tokens, usable - free, running)
        elif block_size is not None:
            needed = np.full(free.shape, float(ceil_div(prompt_tokens, block_size)))
    return _Samples(
        waiting=waiting.v,
        running=running,
        waiting_for_kv=_at(series.get(names.WAITING_FOR_KV), waiting.t_s),
        free_blocks=free,
        needed_blocks=needed,
        estimated=shared,
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
    were = f"{counted(rejected, 'request')} {'was' if rejected == 1 else 'were'}"
    return AdmissionVerdict("kv_memory", f"{were} refused for want of KV memory")


def _from_samples(samples: _Samples, preemptions: float) -> AdmissionVerdict:
    n = samples.waiting.size
    waits = samples.waiting >= 1
    seated = _all_seats_taken(samples, waits)
    starved = _starved(samples, waits & ~seated)
    if _counts(starved):
        return AdmissionVerdict("kv_memory", _starved_text(samples, starved))
    if preemptions > 0:
        return AdmissionVerdict(
            "kv_memory", f"{counted(round(preemptions), 'preemption')} inside the window"
        )
    rest = waits & ~starved
    if not _counts(rest):
        if not waits.any():
            return AdmissionVerdict("free", f"no request waits in any of {n} samples")
        return AdmissionVerdict("free", f"requests wait in only {int(waits.sum())} of {n} samples")
    return AdmissionVerdict(_other_limit(samples, rest, seated), _rest_text(samples, rest))


def _counted_samples(samples: _Samples, preemptions: float) -> AdmissionCounts:
    waits = samples.waiting >= 1
    seated = _all_seats_taken(samples, waits)
    starved = _starved(samples, waits & ~seated)
    rest = waits & ~starved
    if samples.max_num_seqs is None and rest.any():
        # an unstated limit shows in the verdict on those that wait for something else
        pinned = _other_limit(samples, rest, seated) == "scheduler_limit"
        seated = rest if pinned and int(rest.sum()) >= MIN_SAMPLES else seated
    seated = seated & rest
    return AdmissionCounts(
        starved=int(starved.sum()),
        seated=int(seated.sum()),
        waits=int(waits.sum()),
        samples=int(waits.size),
        preemptions=preemptions,
        alike=neighbours_alike(starved | seated),
    )


def _all_seats_taken(samples: _Samples, waits: Bools) -> Bools:
    if samples.max_num_seqs is None or samples.running is None:
        return np.zeros(waits.size, dtype=np.bool_)
    return np.asarray(samples.running >= samples.max_num_seqs, dtype=np.bool_)


def _starved(samples: _Samples, waits: Bools) -> Bools:
    """Samples in which a request waits for KV memory."""
    if samples.waiting_for_kv is not None:
        return np.asarray(samples.waiting_for_kv >= 1, dtype=np.bool_)
    if samples.free_blocks is None or samples.needed_blocks is None:
        return np.zeros(waits.size, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        return np.asarray(waits & (samples.free_blocks < samples.needed_blocks), dtype=np.bool_)


def _counts(shown: Bools) -> bool:
    return bool(shown.sum() >= MIN_SAMPLES and shown.mean() >= SAMPLE_SHARE)


def _other_limit(samples: _Samples, rest: Bools, seated: Bools) -> Admission:
    if float(seated[rest].mean()) >= 0.5:
        return "scheduler_limit"
    if samples.waiting_for_kv is None and samples.free_blocks is None:
        return "unknown"
    if samples.max_num_seqs is None and samples.running is not None:
        return "scheduler_limit" if _pinned(samples.running, rest) else "compute"
    return "compute"


def _pinned(running: Floats, rest: Bools) -> bool:
    """An unstated limit: never do more run than while requests wait, and mostly as many.

    Not always: where a request has just left its seat, the next step fills it.
    """
    most = running[rest].max()
    return bool(np.nanmax(running) <= most and (running[rest] == most).mean() > 0.5)


def _starved_text(samples: _Samples, starved: Bools) -> str:
    n, shown = starved.size, int(starved.sum())
    if samples.waiting_for_kv is not None:
        most = samples.waiting_for_kv[starved].max()
        return f"up to {_waiting(most)} for KV memory, in {shown} of {n} samples" + _running(
            samples, starved
        )
    text = (
        f"up to {_waiting(samples.waiting[starved].max())} in {shown} of {n} samples"
        f"{_running(samples, starved)}"
    )
    if samples.free_blocks is None or samples.needed_blocks is None:
        return text
    most, needed = samples.free_blocks[starved].max(), samples.needed_blocks[starved].min()
    about = (
        f"about {needed:.0f} or more (several groups of layers share the pool)"
        if samples.estimated
        else f"{needed:.0f}"
    )
    free = counted(int(most), "block")
    return f"{text}, with at most {free} free; the next prompt needs {about}"


def _rest_text(samples: _Samples, rest: Bools) -> str:
    free = ""
    if samples.free_blocks is not None:
        free = f", with {samples.free_blocks[rest].min():.0f} or more blocks free"
    return (
        f"up to {_waiting(samples.waiting[rest].max())} in {int(rest.sum())} of "
        f"{rest.size} samples{_running(samples, rest)}{free}"
    )


def _waiting(most: float) -> str:
    """``1 request waits``, ``7 requests wait``."""
    return f"{counted(int(most), 'request')} {'waits' if most == 1 else 'wait'}"


def _running(samples: _Samples, shown: Bools) -> str:
    if samples.running is None:
        return ""
    seats = f" (max_num_seqs {samples.max_num_seqs})" if samples.max_num_seqs is not None else ""
    return f" while {samples.running[shown].max():.0f} run{seats}"
