"""Counts, in the measuring process, what one worker saw of one run.

Called once per finished request, after its user has sent the next one; the gaps between
its tokens are counted in one pass.
"""

from __future__ import annotations

from harness.live.buckets import EDGES_NS
from harness.live.client_bound import ClientBound
from harness.live.histogram import Histogram
from harness.live.snapshot import CellCounts, ClientHealth, LevelStart, Snapshot
from harness.live.times import (
    RequestTimes,
    lateness_ns,
    meets,
    output_tokens,
    prompt_tokens,
    request_times,
)
from harness.records import FAILURE_CLASSES, CellKey, RequestRecord, RunEvent
from harness.workload import Slo

_Key = tuple[str, str, float]


class _Cell:
    """The counts of one level of one backend; repeats of a level share them."""

    def __init__(self, slo: Slo) -> None:
        self._slo = slo
        self._asked = slo != Slo()
        self.users = 0
        # all outcomes from the start: a rate cannot see a counter's first rise from nothing
        self._outcomes = dict.fromkeys(("ok", *FAILURE_CLASSES), 0)
        self._good = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._times = {name: Histogram(edges) for name, edges in EDGES_NS.items()}

    def add(self, record: RequestRecord, late_ns: int | None, times: RequestTimes | None) -> None:
        """Count one request, its lateness, and its latencies where it has some."""
        self._outcomes[record.outcome] += 1
        if late_ns is not None:
            self._times["send_lateness"].add(late_ns)
        if record.outcome != "ok":
            return
        self._prompt_tokens += prompt_tokens(record)
        self._output_tokens += output_tokens(record)
        self._good += self._asked and meets(times, self._slo)
        if times is not None:
            self._add_times(times, record)

    def _add_times(self, times: RequestTimes, record: RequestRecord) -> None:
        self._times["ttft"].add(times.ttft_ns)
        self._times["e2e"].add(times.e2e_ns)
        if times.tpot_ns is not None:
            self._times["tpot"].add(times.tpot_ns)
        if len(record.token_us) > 1:
            self._times["itl"].add_many_us(record.token_us[1:])

    def counts(self, key: _Key, in_flight: int) -> CellCounts:
        """All that was counted so far."""
        backend, mode, level = key
        return CellCounts(
            backend=backend,
            mode=mode,
            level=level,
            users=self.users,
            in_flight=in_flight,
            outcomes=dict(self._outcomes),
            good=self._good if self._asked else None,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            times={name: histogram.times() for name, histogram in self._times.items()},
        )


class LiveWorker:
    """One worker's counts of one run."""

    def __init__(self, run: str, worker: str, slo: Slo, wall_offset_s: float) -> None:
        """``wall_offset_s``: wall minus monotonic time, for the events' times."""
        self._run = run
        self._worker = worker
        self._slo = slo
        self._wall_offset_s = wall_offset_s
        self._seq = 0
        self._cells: dict[_Key, _Cell] = {}
        self._levels: dict[tuple[str, str], LevelStart] = {}
        #: the level being run now
        self._current: _Key | None = None
        self._client: ClientHealth | None = None
        self._bound = ClientBound()

    def record(self, record: RequestRecord) -> None:
        """A request has ended and was read."""
        late_ns, times = lateness_ns(record), request_times(record)
        self._cell(record.cell).add(record, late_ns, times)
        self._bound.requested(late_ns, times.ttft_ns if times is not None else None)

    def event(self, event: RunEvent) -> None:
        """Something happened to the run; what is of no interest here is ignored."""
        if event.kind == "client_sample":
            self._sampled(event)
        elif event.cell is not None and event.kind == "level_start":
            self._level_started(event.cell, event)
        elif event.cell is not None and event.kind == "level_end":
            self._level_ended(event.cell)

    def snapshot(self, in_flight: int) -> Snapshot:
        """All that was counted so far; ``in_flight`` requests are being made now."""
        self._seq += 1
        return Snapshot(
            run=self._run,
            worker=self._worker,
            seq=self._seq,
            cells=tuple(
                cell.counts(key, in_flight if key == self._current else 0)
                for key, cell in self._cells.items()
            ),
            levels=tuple(self._levels.values()),
            client=self._client,
        )

    def _cell(self, cell: CellKey) -> _Cell:
        key = _key(cell)
        if key not in self._cells:
            self._cells[key] = _Cell(self._slo)
        return self._cells[key]

    def _level_started(self, cell: CellKey, event: RunEvent) -> None:
        users = event.detail.get("users")
        self._cell(cell).users = int(users) if isinstance(users, int) else 0
        self._current = _key(cell)
        self._bound = ClientBound()
        self._set_level(cell, cell.level, event.t_s + self._wall_offset_s)

    def _level_ended(self, cell: CellKey) -> None:
        self._cell(cell).users = 0
        self._current = None
        started = self._levels.get((cell.backend, cell.mode))
        if started is not None:
            self._set_level(cell, 0.0, started.start_wall_s)

    def _set_level(self, cell: CellKey, level: float, start_wall_s: float) -> None:
        self._levels[(cell.backend, cell.mode)] = LevelStart(
            backend=cell.backend, mode=cell.mode, level=level, start_wall_s=start_wall_s
        )

    def _sampled(self, event: RunEvent) -> None:
        lag, cpu = event.detail.get("loop_lag_s"), event.detail.get("cpu_ratio")
        if not isinstance(lag, int | float) or not isinstance(cpu, int | float):
            return
        self._bound.sampled(cpu, lag)
        self._client = ClientHealth(lag_s=lag, cpu_ratio=cpu, bound=self._bound.verdict())


def _key(cell: CellKey) -> _Key:
    return (cell.backend, cell.mode, cell.level)
