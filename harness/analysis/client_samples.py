"""The load generator's samples of itself, and the worst of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from harness.analysis.summary_types import Window
from harness.analysis.table import Bools, Floats, Ints
from harness.records import RunEvent

#: A lag beyond this is a standstill; a busy machine of two cores stays at half of it.
STALL_S = 0.1
#: Fewer samples than this say nothing about a process.
MIN_SAMPLES = 3
#: How long Linux keeps a closed connection's port (TCP_TIMEWAIT_LEN, include/net/tcp.h).
TIME_WAIT_S = 60.0
_COLUMNS = ("cpu_ratio", "loop_lag_s", "time_wait")


@dataclass(frozen=True)
class ClientSamples:
    """The ``client_sample`` events as columns in order of time, shape [n].

    NaN where a sample lacks the figure. ``worker`` numbers the process that took a sample
    by its place in ``names``; a load of one process has one name, which may be empty.
    """

    t_s: Floats
    cpu_ratio: Floats
    loop_lag_s: Floats
    time_wait: Floats
    worker: Ints
    names: tuple[str, ...]

    def of(self, rows: Bools) -> ClientSamples:
        """The samples of some rows."""
        return ClientSamples(
            t_s=self.t_s[rows],
            cpu_ratio=self.cpu_ratio[rows],
            loop_lag_s=self.loop_lag_s[rows],
            time_wait=self.time_wait[rows],
            worker=self.worker[rows],
            names=self.names,
        )

    def by_worker(self) -> Iterator[tuple[str, ClientSamples]]:
        """Each process that has samples, by name."""
        for number in np.unique(self.worker):
            yield self.names[int(number)], self.of(self.worker == number)


def client_samples(events: Iterable[RunEvent]) -> ClientSamples:
    """The load generator's samples of itself, in order of time."""
    numbers: dict[str, int] = {}
    rows = sorted(
        (
            event.t_s,
            *(_number(event, column) for column in _COLUMNS),
            numbers.setdefault(str(event.detail.get("worker", "")), len(numbers)),
        )
        for event in events
        if event.kind == "client_sample"
    )
    table = np.array(rows, dtype=np.float64).reshape(-1, 2 + len(_COLUMNS))
    return ClientSamples(
        t_s=table[:, 0],
        cpu_ratio=table[:, 1],
        loop_lag_s=table[:, 2],
        time_wait=table[:, 3],
        worker=table[:, 4].astype(np.int64),
        names=tuple(numbers),
    )


@dataclass(frozen=True)
class Worst:
    """The largest figure over the processes, and whose it is; None where none is known."""

    value: float | None = None
    worker: str = ""


def worst_median(samples: ClientSamples, column: str) -> Worst:
    """The largest of the processes' medians, of those with enough samples to have one."""
    found = Worst()
    for name, own in samples.by_worker():
        values: Floats = getattr(own, column)
        known = values[np.isfinite(values)]
        if own.t_s.size < MIN_SAMPLES or not known.size:
            continue
        value = float(np.median(known))
        if found.value is None or value > found.value:
            found = Worst(value, name)
    return found


def stood_still_s(window: Window, samples: ClientSamples) -> float:
    """Seconds of standstill between the window's opening and the last counted token.

    Of several processes the worst one's: they stand still each by itself. A lag ended at
    its sample or up to a second before (a sample is taken once a second, or when the
    standstill ends), so one across an edge counts with the part that lies inside. Only the
    largest lag of a sample is known: the sum is a lower bound.
    """
    if window.span is None:
        return 0.0
    start, close = window.span
    end = max(close, window.last_counted_s or close)
    sums = [0.0]
    for _, own in samples.by_worker():
        with np.errstate(invalid="ignore"):
            stalls = own.loop_lag_s > STALL_S
        at, lag = own.t_s[stalls], own.loop_lag_s[stalls]
        inside = np.minimum(at, end) - np.maximum(at - lag, start)
        sums.append(float(np.maximum(inside, 0.0).sum()))
    return max(sums)


def time_wait_peak(samples: ClientSamples) -> float | None:
    """The most closed connections that still held their ports."""
    known = samples.time_wait[np.isfinite(samples.time_wait)]
    return float(known.max()) if known.size else None


def time_wait_expected(samples: ClientSamples) -> float | None:
    """How many closed connections will hold ports once the first ones let go again.

    Their number rises by the rate of new connections for ``TIME_WAIT_S`` and stays there.
    """
    largest: float | None = None
    for _, own in samples.by_worker():
        known = np.isfinite(own.time_wait)
        at, held = own.t_s[known], own.time_wait[known]
        if at.size < MIN_SAMPLES or held[-1] <= held[0]:
            continue
        rate = float((held[-1] - held[0]) / (at[-1] - at[0]))
        largest = max(largest or 0.0, rate * TIME_WAIT_S)
    return largest


def _number(event: RunEvent, key: str) -> float:
    value = event.detail.get(key)
    return float(value) if isinstance(value, int | float) else float("nan")
