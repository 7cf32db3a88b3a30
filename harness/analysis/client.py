"""Was the load generator the limit? Then the figures are its own, not the server's.

Three signs, each sustained over the window (a median), because one hiccup of a busy
machine does not shape a level:

CPU         the measuring process uses more than 90 % of a core: it can serve no more events.
loop lag    the event loop answers late by a good share of the TTFT. With kernel receive
            stamps lag cannot touch arrival times, only delay the next request: the limit is
            half of the median TTFT, at least 50 ms. Without them lag goes straight into
            TTFT: a quarter, at least 20 ms.
lateness    requests leave later than intended by a quarter of the median TTFT, at least
            20 ms: the load offered is not the load asked for.

A standstill is another matter: a client that was stopped, swapped out or starved for
seconds sends nothing meanwhile, and no median shows it. So all lags beyond 0.1 s that fall
into the measured time are added up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.analysis.latency import RequestTimes
from harness.analysis.summary_types import ClientHealth, Window
from harness.analysis.table import Bools, CellTable, Floats
from harness.records import RunEvent

CPU_LIMIT = 0.90
LAG_SHARE_KERNEL, LAG_FLOOR_KERNEL_S = 0.5, 0.050
LAG_SHARE_PLAIN, LAG_FLOOR_PLAIN_S = 0.25, 0.020
LATENESS_SHARE, LATENESS_FLOOR_S = 0.25, 0.020
#: A lag beyond this is a standstill; a busy machine of two cores stays at half of it.
STALL_S = 0.1
#: Fewer samples than this say nothing about a level.
MIN_SAMPLES = 3
#: Share of requests with kernel stamps from which on lag cannot bias arrival times.
_KERNEL_SHARE = 0.9


@dataclass(frozen=True)
class ClientSamples:
    """The ``client_sample`` events as columns; NaN where a sample lacks the figure."""

    t_s: Floats
    cpu_ratio: Floats
    loop_lag_s: Floats


def client_samples(events: Iterable[RunEvent]) -> ClientSamples:
    """The load generator's samples of itself, in order of time."""
    rows = sorted(
        (event.t_s, _number(event, "cpu_ratio"), _number(event, "loop_lag_s"))
        for event in events
        if event.kind == "client_sample"
    )
    table = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return ClientSamples(t_s=table[:, 0], cpu_ratio=table[:, 1], loop_lag_s=table[:, 2])


def measure_client(
    table: CellTable,
    window: Window,
    counted: Bools,
    times: RequestTimes,
    samples: ClientSamples,
    free_s: Floats | None = None,
) -> ClientHealth:
    """The load generator's health inside the window of one cell.

    ``free_s``, shape [n]: before it a request had to wait for others by order of the user
    (``--max-concurrency``), which is no lateness of the client.
    """
    start, end = window.span or (np.inf, -np.inf)
    inside = (samples.t_s > start) & (samples.t_s <= end)
    cpu, lag = samples.cpu_ratio[inside], samples.loop_lag_s[inside]
    due_s = table.intended_s if free_s is None else np.fmax(table.intended_s, free_s)
    late = (table.sent_s - due_s)[counted]
    late = late[~np.isnan(late)]
    ttft = times.ttft_s[counted]
    kernel = table.kernel_clock[counted & table.ok]
    health = ClientHealth(
        cpu_median=_median(cpu),
        lag_median_s=_median(lag),
        lag_max_s=float(np.nanmax(lag)) if np.isfinite(lag).any() else None,
        lateness_p50_s=_median(late),
        lateness_p95_s=float(np.percentile(late, 95)) if late.size else None,
        samples=int(inside.sum()),
        bound_by=(),
        stood_still_s=_stood_still_s(window, samples),
    )
    by_kernel = bool(kernel.size) and float(kernel.mean()) >= _KERNEL_SHARE
    return _judged(health, _median(ttft), by_kernel)


def _judged(health: ClientHealth, ttft_s: float | None, by_kernel: bool) -> ClientHealth:
    typical = ttft_s or 0.0
    share, floor = (
        (LAG_SHARE_KERNEL, LAG_FLOOR_KERNEL_S)
        if by_kernel
        else (LAG_SHARE_PLAIN, LAG_FLOOR_PLAIN_S)
    )
    lag_limit = max(floor, share * typical)
    late_limit = max(LATENESS_FLOOR_S, LATENESS_SHARE * typical)
    signs: list[str] = []
    if health.samples >= MIN_SAMPLES:
        cpu = health.cpu_median or 0.0
        if cpu > CPU_LIMIT:
            signs.append(
                f"its process used {cpu * 100:.0f} % of a core (limit {CPU_LIMIT * 100:.0f} %)"
            )
        if (health.lag_median_s or 0.0) > lag_limit:
            signs.append(
                f"its event loop was late by {health.lag_median_s:.3f} s (limit {lag_limit:.3f} s)"
            )
    if (health.lateness_p50_s or 0.0) > late_limit:
        signs.append(
            f"half of its requests left {health.lateness_p50_s:.3f} s late or more "
            f"(limit {late_limit:.3f} s)"
        )
    return ClientHealth(
        cpu_median=health.cpu_median,
        lag_median_s=health.lag_median_s,
        lag_max_s=health.lag_max_s,
        lateness_p50_s=health.lateness_p50_s,
        lateness_p95_s=health.lateness_p95_s,
        samples=health.samples,
        bound_by=tuple(signs),
        stood_still_s=health.stood_still_s,
    )


def _stood_still_s(window: Window, samples: ClientSamples) -> float:
    """Seconds of standstill between the window's opening and the last counted token.

    A lag ended at its sample or up to a second before (a sample is taken once a second, or
    when the standstill ends), so one across an edge counts with the part that lies inside.
    Only the largest lag of a sample is known: the sum is a lower bound.
    """
    if window.span is None:
        return 0.0
    start, close = window.span
    end = max(close, window.last_counted_s or close)
    with np.errstate(invalid="ignore"):
        stalls = samples.loop_lag_s > STALL_S
    at, lag = samples.t_s[stalls], samples.loop_lag_s[stalls]
    inside = np.minimum(at, end) - np.maximum(at - lag, start)
    return float(np.maximum(inside, 0.0).sum())


def _number(event: RunEvent, key: str) -> float:
    value = event.detail.get(key)
    return float(value) if isinstance(value, int | float) else float("nan")


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None
