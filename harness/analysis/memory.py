"""Memory inside the window: the server's gauges, and the tokens the client holds against them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.analysis.pool import pool_bytes_per_token
from harness.analysis.summary_types import Level, MemoryFigures, SharedGpu, Window
from harness.analysis.table import CellTable, Floats
from harness.analysis.throughput import output_tokens, prompt_tokens
from harness.observe import names
from harness.observe.series import BackendSeries, Series

#: Kinds of backend that allocate their whole pool before the first request.
PREALLOCATING = frozenset({"vllm"})
#: Gauges whose sample times stand for the scrapes, best first.
_CLOCK_GAUGES = (names.RUNNING, names.KV_USED_BYTES, names.KV_USAGE_RATIO, names.WAITING)


def measure_memory(
    table: CellTable,
    window: Window,
    series: BackendSeries | None,
    kind: str,
    max_model_len: int | None = None,
) -> MemoryFigures | None:
    """The memory figures of one cell; None without a sample in the window (never zeros)."""
    if series is None or window.span is None:
        return None
    start, end = window.span
    times = sample_times(series, start, end)
    if not times.size:
        return None
    gauges = {name: _level(series.get(name), start, end) for name in series.values}
    held = client_tokens_held(table, times)
    return MemoryFigures(
        source=series.source,
        samples=int(times.size),
        interval_s=float(np.median(np.diff(times))) if times.size > 1 else None,
        failed_scrapes=int(((series.failed_t_s >= start) & (series.failed_t_s <= end)).sum()),
        longest_gap_s=float(np.diff(np.concatenate([[start], times, [end]])).max()),
        usage_ratio=gauges.get(names.KV_USAGE_RATIO),
        used_bytes=gauges.get(names.KV_USED_BYTES),
        reserved_bytes=gauges.get(names.KV_RESERVED_BYTES),
        budget_bytes=_budget(series, gauges),
        running=gauges.get(names.RUNNING),
        waiting=gauges.get(names.WAITING),
        waiting_for_kv=gauges.get(names.WAITING_FOR_KV),
        preemptions=_increase(series, names.PREEMPTIONS_TOTAL, window),
        prefix_hit_ratio=_ratio_of_increases(
            series, names.PREFIX_HITS_TOTAL, names.PREFIX_QUERIES_TOTAL, window
        ),
        queue_mean_s=_ratio_of_increases(
            series, names.QUEUE_SECONDS_SUM, names.QUEUE_SECONDS_COUNT, window
        ),
        client_tokens_held=Level(float(held.mean()), float(held.max())),
        server_tokens_held=gauges.get(names.KV_TOKENS_HELD),
        pool_bytes_per_token=pool_bytes_per_token(series.pool, max_model_len),
        used_bytes_per_token_held=_per_token(gauges, held),
        device_used_bytes=gauges.get(names.DEVICE_USED_BYTES),
        process_rss_bytes=gauges.get(names.PROCESS_RSS_BYTES),
        cuda_allocated_bytes=gauges.get(names.CUDA_ALLOCATED_BYTES),
        cuda_reserved_bytes=gauges.get(names.CUDA_RESERVED_BYTES),
        device_preallocated=kind in PREALLOCATING,
    )


def shared_gpus(series: Mapping[str, BackendSeries]) -> tuple[SharedGpu, ...]:
    """The total of each group of GPUs that several backends use, once, over the whole run."""
    found: dict[tuple[str, ...], SharedGpu] = {}
    for item in series.values():
        device = item.shared_device
        if device is None or not len(device.total_used_bytes):
            continue
        used = device.total_used_bytes.v
        found[device.uuids] = SharedGpu(
            backends=device.backends,
            gpu_uuids=device.uuids,
            samples=int(used.size),
            total_used_bytes=Level(float(used.mean()), float(used.max())),
        )
    return tuple(found.values())


def sample_times(series: BackendSeries, start_s: float, end_s: float) -> Floats:
    """When the backend was sampled inside [start, end]."""
    for name in _CLOCK_GAUGES:
        gauge = series.get(name)
        if gauge is not None:
            return gauge.window(start_s, end_s).t_s
    return np.empty(0)


def client_tokens_held(table: CellTable, at_s: Floats) -> Floats:
    """Tokens that the server must hold at the given rising times, counted by the client.

    A request counts from its first token's arrival (before that it may still wait) to its
    last: its prompt and the tokens received so far. That is a lower bound of what is held.
    """
    slots = at_s.size + 1
    with_tokens = table.events > 0
    prompt = np.where(with_tokens, prompt_tokens(table), 0).astype(np.float64)
    produced = np.where(with_tokens, output_tokens(table), 0)
    first = np.searchsorted(at_s, (table.sent_s + table.first_s)[with_tokens])
    last = np.searchsorted(at_s, (table.sent_s + table.last_s)[with_tokens])
    gained = np.bincount(first, weights=prompt[with_tokens], minlength=slots)
    lost = np.bincount(last, weights=(prompt + produced)[with_tokens], minlength=slots)
    if table.token_us.size:
        token = np.searchsorted(at_s, table.token_times_s())
        gained = gained + np.bincount(token, weights=table.token_weights(), minlength=slots)
    return np.asarray(np.maximum(np.cumsum(gained - lost)[:-1], 0.0), dtype=np.float64)


def _level(series: Series | None, start_s: float, end_s: float) -> Level | None:
    if series is None:
        return None
    mean, maximum = series.mean(start_s, end_s), series.maximum(start_s, end_s)
    return None if mean is None or maximum is None else Level(mean, maximum)


def _budget(series: BackendSeries, gauges: Mapping[str, Level | None]) -> float | None:
    if series.pool is not None and series.pool.total_bytes is not None:
        return float(series.pool.total_bytes)
    stated = gauges.get(names.KV_BUDGET_BYTES)
    return None if stated is None else stated.maximum


def _increase(series: BackendSeries, name: str, window: Window) -> float | None:
    counter = series.get(name)
    if counter is None or window.span is None:
        return None
    return counter.increase(*window.span)


def _ratio_of_increases(
    series: BackendSeries, above: str, below: str, window: Window
) -> float | None:
    numerator, denominator = _increase(series, above, window), _increase(series, below, window)
    return numerator / denominator if numerator is not None and denominator else None


def _per_token(gauges: Mapping[str, Level | None], held: Floats) -> float | None:
    used, server = gauges.get(names.KV_USED_BYTES), gauges.get(names.KV_TOKENS_HELD)
    tokens = server.mean if server is not None else float(held.mean())
    return used.mean / tokens if used is not None and tokens > 0 else None
