"""From the KV memory to the device: what else lies there, as far as it was measured.

``allocated <= reserved <= device``: torch's allocated bytes are what theory speaks of, its
reserved ones what it took from the device (they do not fall again), and the device holds the
CUDA context and graphs beside (0.5 to 1 GB). Without a GPU the process's resident memory stands
for the device. A promise takes no memory before it is kept, so a growing cache counts by its
used bytes; a pool that is allocated at start counts whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.gauges import largest_at, mean_at
from harness.analysis.reconcile_theory import KvTheory
from harness.analysis.reconcile_types import Reason, Stage, Step
from harness.analysis.table import Floats
from harness.kv.capacity import ceil_div
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import BackendSeries

#: of a block id and of a slot number in vLLM's tables (vllm/v1/worker/block_table.py, 0.32)
_BLOCK_ID_BYTES, _SLOT_BYTES = 4, 8


def device_stage(
    series: BackendSeries,
    times: Floats,
    info: BackendInfo,
    theory: KvTheory,
    used: Stage,
    reserved: Stage | None,
    absent: list[str],
) -> Stage | None:
    """The last stage; None, and said in ``absent``, where no device memory was measured."""
    if series.shared_device is not None:
        absent.append("device: its GPU is shared, and the total is no single server's")
        return None
    steps: list[Step] = []
    start = _allocated(series, times, info, used, reserved, steps)
    steps += block_tables(info)
    if theory.weights_bytes is None:
        absent.append("weights: their size is not known (name the model's config)")
    else:
        steps.append(Step("weights", theory.weights_bytes, "worked out"))
    end = mean_at(series, names.DEVICE_USED_BYTES, times)
    if end is not None or series.get(names.CUDA_RESERVED_BYTES) is not None:
        return _gpu(series, times, start, steps, end, absent)
    rss = mean_at(series, names.PROCESS_RSS_BYTES, times)
    if rss is None:
        absent.append("device: neither a GPU's memory nor the process's was measured")
        return None
    return _process(series, times, start, steps, rss, theory, info, absent)


def _allocated(
    series: BackendSeries,
    times: Floats,
    info: BackendInfo,
    used: Stage,
    reserved: Stage | None,
    steps: list[Step],
) -> int:
    """KV bytes that exist: a pool whole, else what is in use; empty slots become a step."""
    if info.kind == "vllm":
        return reserved.end_bytes if reserved is not None else used.end_bytes
    slots = mean_at(series, names.SLOTS, times)
    running = mean_at(series, names.RUNNING, times)
    if not info.mode.startswith("static") or reserved is None or not slots or not running:
        return used.end_bytes
    empty = max(0, round((slots - running) * reserved.end_bytes / running))
    steps.append(Step("empty_slots", empty, "measured"))
    return reserved.end_bytes


def block_tables(info: BackendInfo) -> list[Step]:
    """vLLM's tables from requests to blocks and from tokens to slots, beside the pool.

    They are of a fixed size: max_num_seqs rows of the blocks that max_model_len takes, and one
    slot number per token of a step. Left out where a figure is not known.
    """
    if info.kind != "vllm" or not (info.max_num_seqs and info.max_model_len and info.block_size):
        return []
    rows = info.max_num_seqs * ceil_div(info.max_model_len, info.block_size) * _BLOCK_ID_BYTES
    slots = (info.max_num_batched_tokens or 0) * _SLOT_BYTES
    return [Step("block_tables", rows + slots, "worked out")]


def _gpu(
    series: BackendSeries,
    times: Floats,
    start: int,
    steps: list[Step],
    device: float | None,
    absent: list[str],
) -> Stage | None:
    """A GPU's memory: temporaries, what torch keeps beyond them, and what is outside torch."""
    allocated = mean_at(series, names.CUDA_ALLOCATED_BYTES, times)
    reserved = mean_at(series, names.CUDA_RESERVED_BYTES, times)
    temporary = _temporaries(series, times, allocated)
    if temporary is None:
        absent.append("temporaries: the server states no peak of its memory")
    else:
        steps.append(Step("temporaries", round(temporary), "measured"))
    if allocated is None or reserved is None:
        absent.append("allocator and CUDA context: the server states none of torch's figures")
        return None if device is None else Stage("device", start, _kept(steps), round(device))
    rest = max(0.0, reserved - allocated - (temporary or 0.0))
    steps.append(Step("allocator", round(rest), "measured"))
    if device is None:
        absent.append("CUDA context and graphs: the GPU's own memory was not measured")
        return Stage("device", start, _kept(steps), round(reserved))
    steps.append(Step("cuda_context", max(0, round(device - reserved)), "measured"))
    return Stage("device", start, _kept(steps), round(device))


def _temporaries(series: BackendSeries, times: Floats, allocated: float | None) -> float | None:
    """Peak minus steady, as the server states it; else of torch's peak over the same time."""
    stated = largest_at(series, names.TEMPORARY_PEAK_BYTES, times)
    if stated is not None:
        return stated
    peak = largest_at(series, names.CUDA_MAX_ALLOCATED_BYTES, times)
    return None if peak is None or allocated is None else max(0.0, peak - allocated)


def _process(
    series: BackendSeries,
    times: Floats,
    start: int,
    steps: list[Step],
    rss: float,
    theory: KvTheory,
    info: BackendInfo,
    absent: list[str],
) -> Stage:
    """A process on a CPU: what it held before it had any request, and what came on top."""
    temporary = largest_at(series, names.TEMPORARY_PEAK_BYTES, times)
    if temporary is None:
        absent.append("temporaries: not measurable in a process on the CPU")
    else:
        steps.append(Step("temporaries", round(temporary), "measured"))
    before = idle_rss(series)
    if before is None:
        absent.append("before the load: no sample without requests")
    else:
        pool = start if info.kind == "vllm" or info.mode.startswith("static") else 0
        pool += sum(step.amount_bytes for step in steps if step.reason == "empty_slots")
        known = sum(
            step.amount_bytes for step in steps if step.reason in ("weights", "block_tables")
        )
        steps.append(Step("before_load", max(0, round(before) - pool - known), "measured"))
    return Stage("process", start, _kept(steps), round(rss))


def idle_rss(series: BackendSeries) -> float | None:
    """Resident bytes at the last sample before the first request ran; None without such."""
    rss, running = series.get(names.PROCESS_RSS_BYTES), series.get(names.RUNNING)
    if rss is None or running is None or not len(rss):
        return None
    busy = running.t_s[running.v > 0]
    idle = rss.v if not busy.size else rss.v[rss.t_s < busy[0]]
    return float(idle[-1]) if idle.size else None


def _kept(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Those that are above 0, in the order of the tables."""
    order: tuple[Reason, ...] = (
        "empty_slots",
        "block_tables",
        "weights",
        "before_load",
        "temporaries",
        "allocator",
        "cuda_context",
    )
    kept = [step for step in steps if step.amount_bytes > 0]
    return tuple(sorted(kept, key=lambda step: order.index(step.reason)))
