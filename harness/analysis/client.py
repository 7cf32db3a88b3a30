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

With several processes CPU and lag are judged of each by itself, and one of them beyond a
limit is enough: its share of the requests is in every percentile.

A standstill is another matter: a client that was stopped, swapped out or starved for
seconds sends nothing meanwhile, and no median shows it. So all lags beyond 0.1 s that fall
into the measured time are added up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.analysis.client_samples import (
    ClientSamples,
    Worst,
    stood_still_s,
    time_wait_expected,
    time_wait_peak,
    worst_median,
)
from harness.analysis.latency import RequestTimes
from harness.analysis.summary_types import ClientHealth, Window
from harness.analysis.table import Bools, CellTable, Floats

CPU_LIMIT = 0.90
LAG_SHARE_KERNEL, LAG_FLOOR_KERNEL_S = 0.5, 0.050
LAG_SHARE_PLAIN, LAG_FLOOR_PLAIN_S = 0.25, 0.020
LATENESS_SHARE, LATENESS_FLOOR_S = 0.25, 0.020
#: Share of requests with kernel stamps from which on lag cannot bias arrival times.
_KERNEL_SHARE = 0.9


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
    inside = samples.of((samples.t_s > start) & (samples.t_s <= end))
    due_s = table.intended_s if free_s is None else np.fmax(table.intended_s, free_s)
    late = (table.sent_s - due_s)[counted]
    late = late[~np.isnan(late)]
    kernel = table.kernel_clock[counted & table.ok]
    lags = inside.loop_lag_s[np.isfinite(inside.loop_lag_s)]
    cpu, lag = worst_median(inside, "cpu_ratio"), worst_median(inside, "loop_lag_s")
    health = ClientHealth(
        cpu_median=cpu.value,
        lag_median_s=lag.value,
        lag_max_s=float(lags.max()) if lags.size else None,
        lateness_p50_s=_median(late),
        lateness_p95_s=float(np.percentile(late, 95)) if late.size else None,
        samples=int(inside.t_s.size),
        bound_by=(),
        stood_still_s=stood_still_s(window, samples),
        workers=int(np.unique(inside.worker).size),
        time_wait_peak=time_wait_peak(inside),
        time_wait_expected=time_wait_expected(inside),
    )
    by_kernel = bool(kernel.size) and float(kernel.mean()) >= _KERNEL_SHARE
    signs = _signs(health, (cpu, lag), _median(times.ttft_s[counted]) or 0.0, by_kernel)
    return replace(health, bound_by=tuple(signs))


def _signs(
    health: ClientHealth, worst: tuple[Worst, Worst], ttft_s: float, by_kernel: bool
) -> list[str]:
    """What shows that the client was the limit, in words; ``worst`` is of CPU and of lag."""
    share, floor = (
        (LAG_SHARE_KERNEL, LAG_FLOOR_KERNEL_S)
        if by_kernel
        else (LAG_SHARE_PLAIN, LAG_FLOOR_PLAIN_S)
    )
    lag_limit = max(floor, share * ttft_s)
    late_limit = max(LATENESS_FLOOR_S, LATENESS_SHARE * ttft_s)
    cpu, lag = worst
    several = health.workers > 1
    signs: list[str] = []
    if (cpu.value or 0.0) > CPU_LIMIT:
        whose = f"its process {cpu.worker}" if several else "its process"
        signs.append(
            f"{whose} used {(cpu.value or 0.0) * 100:.0f} % of a core "
            f"(limit {CPU_LIMIT * 100:.0f} %)"
        )
    if (lag.value or 0.0) > lag_limit:
        whose = f"the event loop of {lag.worker}" if several else "its event loop"
        signs.append(f"{whose} was late by {lag.value:.3f} s (limit {lag_limit:.3f} s)")
    if (health.lateness_p50_s or 0.0) > late_limit:
        signs.append(
            f"half of its requests left {health.lateness_p50_s:.3f} s late or more "
            f"(limit {late_limit:.3f} s)"
        )
    return signs


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None
