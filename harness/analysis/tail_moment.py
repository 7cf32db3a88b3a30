"""What was going on while one request was on its way: from its level's records and series.

Times are monotonic seconds. Gauges are known once a second or so: a span is looked at from the
last sample before it to the first one after it, so what is said of it may lie beside it by one
sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.client_samples import ClientSamples
from harness.analysis.latency import RequestTimes
from harness.analysis.table import CellTable, Floats
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import BackendSeries, Series

#: Usage from which on a pool has no room worth a request.
FULL_POOL = 0.98


@dataclass(frozen=True)
class Queue:
    """The fullest moment of a span, as the server's gauges say it; None: not stated."""

    waiting: float
    running: float | None
    usage: float | None
    waiting_for_kv: float | None
    #: all seats taken
    seated: bool
    #: the sample lies in the span, not beside it
    inside: bool

    @property
    def pool_full(self) -> bool:
        """Whether the KV pool keeps the request out."""
        if self.waiting_for_kv is not None:
            return self.waiting_for_kv >= 1
        return self.usage is not None and self.usage >= FULL_POOL and not self.seated


class Level:
    """One cell, ready to be asked about a span of time."""

    def __init__(
        self,
        info: BackendInfo,
        table: CellTable,
        times: RequestTimes,
        series: BackendSeries | None,
        samples: ClientSamples,
    ) -> None:
        self.table = table
        self._seats = info.max_num_seqs
        self._series = series
        lags = np.isfinite(samples.loop_lag_s)
        self._lag_t_s, self._lag_s = samples.t_s[lags], samples.loop_lag_s[lags]
        first_s = table.sent_s + times.ttft_s
        known = ~np.isnan(first_s)
        own = times.ttft_s[known]
        #: what reading a prompt takes when nothing is in its way: TTFT's 5th percentile
        self.prefill_s = float(np.percentile(own, 5)) if own.size else 0.0
        ends = first_s[known]
        starts = np.maximum(table.sent_s[known], ends - self.prefill_s)
        self._starts_s, self._ends_s = np.sort(starts), np.sort(ends)

    def arrivals_s(self, row: int) -> Floats:
        """Monotonic arrivals of one request's token events."""
        part = slice(int(self.table.offsets[row]), int(self.table.offsets[row + 1]))
        elapsed = np.cumsum(self.table.token_us[part]) * 1e-6
        return np.asarray(elapsed + self.table.sent_s[row], dtype=np.float64)

    def prefills_over(self, start_s: Floats, end_s: Floats) -> Floats:
        """How many prompts were read in each (start, end): their first tokens came, or did soon.

        A prompt's reading ends with its first token and takes ``prefill_s``.
        """
        begun = np.searchsorted(self._starts_s, end_s, side="left")
        ended = np.searchsorted(self._ends_s, start_s, side="right")
        return np.asarray(begun - ended, dtype=np.float64)

    def others_prefill(self, start_s: float, end_s: float) -> tuple[int, float]:
        """Others' prompts that were read in (start, end), and for how long, without overlap.

        ``end`` is the request's own first token, whose reading is not counted.
        """
        first = int(np.searchsorted(self._ends_s, start_s, side="right"))
        last = int(np.searchsorted(self._ends_s, end_s, side="left"))
        ends = self._ends_s[first:last]
        free = np.diff(ends, prepend=start_s)
        return int(ends.size), float(np.minimum(free, self.prefill_s).sum())

    def rise(self, name: str, start_s: float, end_s: float) -> tuple[float, float, float] | None:
        """(by how much, from, to): a counter's rise between the samples around a span."""
        series = self._around(name, start_s, end_s)
        if series is None or len(series) < 2:
            return None
        rise = series.increase(-np.inf, np.inf)
        return (rise, float(series.t_s[0]), float(series.t_s[-1])) if rise else None

    def queue(self, start_s: float, end_s: float) -> Queue | None:
        """The moment of a span with most requests waiting; None when none waits, or it is unknown.

        Of a span without a sample it is the quieter one of those around it.
        """
        waiting = self._around(names.WAITING, start_s, end_s)
        if waiting is None:
            return None
        inside = waiting.window(start_s, end_s)
        if len(inside):
            waiting, place = inside, int(np.argmax(inside.v))
        else:
            place = int(np.argmin(waiting.v))
        if waiting.v[place] < 1:
            return None
        at = float(waiting.t_s[place])
        running = self._at(names.RUNNING, at)
        return Queue(
            waiting=float(waiting.v[place]),
            running=running,
            usage=self._at(names.KV_USAGE_RATIO, at),
            waiting_for_kv=self._at(names.WAITING_FOR_KV, at),
            inside=len(inside) > 0,
            seated=running is not None and self._seats is not None and running >= self._seats,
        )

    def fullest(self, start_s: float, end_s: float) -> float | None:
        """The highest KV usage around a span."""
        usage = self._around(names.KV_USAGE_RATIO, start_s, end_s)
        return float(usage.v.max()) if usage is not None else None

    def lag_s(self, start_s: float, end_s: float) -> float:
        """The client's largest lag that reached into a span; 0 without one."""
        near = (self._lag_t_s >= start_s) & (self._lag_t_s - self._lag_s <= end_s)
        return float(self._lag_s[near].max()) if near.any() else 0.0

    def _around(self, name: str, start_s: float, end_s: float) -> Series | None:
        series = self._series.get(name) if self._series is not None else None
        if series is None or not len(series):
            return None
        first = max(0, int(np.searchsorted(series.t_s, start_s, side="right")) - 1)
        last = int(np.searchsorted(series.t_s, end_s, side="left")) + 1
        found = Series(series.t_s[first:last], series.v[first:last])
        return found if len(found) else None

    def _at(self, name: str, at_s: float) -> float | None:
        series = self._series.get(name) if self._series is not None else None
        return series.last(-np.inf, at_s) if series is not None else None
