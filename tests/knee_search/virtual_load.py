"""A level of a closed loop in virtual time: what the load and the scraper would have recorded.

No socket and no clock. As in a real level every user sends its next request when its last one
has ended; the window opens when each has ended one; the sequential rule is asked at every scrape
and closes it; the counted requests are followed to their end while the users go on. A scrape
shows the engine as its last scheduling left it, as vLLM's gauges do.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from harness.kv.capacity import ceil_div
from harness.observe import names
from harness.observe.series import BackendSeries, KvPool, Series
from harness.plan.search_types import Decision, SoFar
from harness.plan.sequential import SequentialRule, decide
from harness.records import CellKey, RequestRecord, RunEvent
from servers.simulated.core import EngineCore, Sequence
from tests.knee_search.cases import THINK_S, Case

#: what a client of its own process adds to a request's end
_AFTER_S = 0.0001


@dataclass
class LevelRun:
    """What is left of a level."""

    records: list[RequestRecord] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    series: BackendSeries | None = None
    decision: Decision = "go_on"
    took_s: float = 0.0
    window_s: float = 0.0


@dataclass(eq=False)
class _Request:
    sequence: Sequence
    user: int
    t_sent_s: float
    tokens_us: list[int] = field(default_factory=list)
    counted: bool = False


class VirtualLevel:
    """One level of a case."""

    def __init__(self, case: Case, cell: CellKey, start_s: float, first_seq: int) -> None:
        self._case, self._cell, self._start_s = case, cell, start_s
        self._users = round(cell.level)
        self._core = EngineCore(case.model)
        self._draw = random.Random(f"load/{case.name}/{cell.level}/{cell.repeat}")
        self._lengths = case.law.lengths(self._draw)
        ramp = case.law.ramp_s
        self._coming = [(start_s + ramp * user / self._users, user) for user in range(self._users)]
        self._rule = SequentialRule(
            max_s=case.max_level_s, goals=(case.goal,), users=float(self._users)
        )
        self._live: dict[int, _Request] = {}
        self._seq = first_seq
        self._now = start_s
        self._next_scrape_s = start_s + case.scrape_s * self._draw.random()
        self._samples: list[tuple[float, int, int, int, int, int]] = []
        self._first_ends: set[int] = set()
        self._open_s: float | None = None
        self._close_s: float | None = None
        self._ok = self._met = self._looks = self._kept_out = 0
        self._preempted_before = 0
        self._counted_left = 0
        self._run = LevelRun()

    def run(self) -> LevelRun:
        """From the first request to the last one's end."""
        while self._close_s is None or self._counted_left or self._live:
            self._step()
        cell, run = self._cell, self._run
        run.took_s = self._now - self._start_s
        run.window_s = self._close_s - (self._open_s or self._close_s)
        run.events = self._events(cell, self._close_s)
        run.series = self._series()
        return run

    def _step(self) -> None:
        self._arrive()
        planned = self._core.begin_step(self._now)
        if planned is None:
            self._now = self._coming[0][0]
            return
        end_s = self._now + planned * self._case.law.step_factor(self._draw)
        while self._next_scrape_s < end_s:
            self._scrape(self._next_scrape_s)
            self._next_scrape_s += self._case.scrape_s
        self._now = end_s
        for sequence in self._core.end_step():
            request = self._live[sequence.key]
            request.tokens_us.append(round((end_s - request.t_sent_s) * 1e6))
            if sequence.finished:
                self._over(request)

    def _arrive(self) -> None:
        case = self._case
        while self._coming and self._coming[0][0] <= self._now:
            t_s, user = heapq.heappop(self._coming)
            if self._close_s is not None and not self._counted_left:
                continue
            sequence = Sequence(self._seq, case.law.prompt_tokens, next(self._lengths), t_s)
            request = _Request(sequence, user, t_s)
            request.counted = self._open_s is not None and self._close_s is None
            self._counted_left += request.counted
            self._live[self._seq] = request
            self._seq += 1
            self._core.add(sequence)

    def _over(self, request: _Request) -> None:
        del self._live[request.sequence.key]
        self._counted_left -= request.counted
        self._run.records.append(_record(self._cell, self._case, request))
        end_s = self._now + _AFTER_S
        heapq.heappush(self._coming, (self._now + THINK_S, request.user))
        if request.counted and self._close_s is None:
            self._ok += 1
            self._met += self._meets(request)
        self._first_ends.add(request.user)
        if self._open_s is None and len(self._first_ends) == self._users:
            self._open_s = end_s
            self._preempted_before = self._core.preemptions

    def _meets(self, request: _Request) -> bool:
        case, times = self._case, request.tokens_us
        tpot = (times[-1] - times[0]) * 1e-6 / max(1, len(times) - 1)
        late = case.ttft_limit_s is not None and times[0] * 1e-6 > case.ttft_limit_s
        return not late and (case.tpot_limit_s is None or tpot <= case.tpot_limit_s)

    def _scrape(self, t_s: float) -> None:
        core = self._core
        blocker = core.blocker()
        running, waiting = len(core.running), len(core.waiting)
        for_kv = waiting if blocker == "kv" else 0
        self._samples.append((t_s, running, waiting, core.free_blocks, core.preemptions, for_kv))
        if self._open_s is None or self._close_s is not None or t_s <= self._open_s:
            return
        self._looks += 1
        self._kept_out += self._shows_kept_out(running, waiting, core.free_blocks, for_kv)
        decision = decide(self._so_far(t_s), self._rule)
        if decision != "go_on":
            self._close_s = t_s
            self._run.decision = decision

    def _shows_kept_out(self, running: int, waiting: int, free: int, for_kv: int) -> bool:
        """From the gauges alone, as a live watcher would."""
        model = self._case.model
        if not waiting:
            return False
        if self._case.states_seats and running >= model.max_num_seqs:
            return True
        if model.layout == "contiguous":
            return for_kv > 0 or not self._case.states_seats
        needed = ceil_div(self._case.law.prompt_tokens, model.block_size)
        return free < needed or not self._case.states_seats

    def _so_far(self, t_s: float) -> SoFar:
        return SoFar(
            elapsed_s=t_s - (self._open_s or t_s),
            ok=self._ok,
            failed=0,
            met=self._met if self._case.goal == "slo" else None,
            samples=self._looks,
            kept_out=self._kept_out,
            preemptions=float(self._core.preemptions - self._preempted_before),
            in_flight_rising=False,
        )

    def _events(self, cell: CellKey, close_s: float) -> list[RunEvent]:
        health = {"loop_lag_s": 0.001, "cpu_ratio": 0.2, "in_flight": self._users}
        samples = [
            RunEvent(t_s=float(t), kind="client_sample", detail=dict(health))
            for t in np.arange(self._start_s + 1.0, self._now, 1.0)
        ]
        users = {"users": self._users}
        marks = [
            RunEvent(t_s=self._start_s, kind="level_start", cell=cell, detail=dict(users)),
            RunEvent(t_s=close_s, kind="window_close", cell=cell),
            RunEvent(
                t_s=self._now + _AFTER_S, kind="level_end", cell=cell, detail={"reason": "complete"}
            ),
        ]
        return sorted([*marks, *samples], key=lambda event: event.t_s)

    def _series(self) -> BackendSeries:
        model = self._case.model
        table = np.array(self._samples, dtype=np.float64).reshape(-1, 6)
        t_s, running, waiting, free, preemptions, for_kv = table.T

        def series(values: np.ndarray) -> Series:
            return Series(t_s.copy(), np.array(values, dtype=np.float64))

        values = {names.RUNNING: series(running), names.WAITING: series(waiting)}
        pool = KvPool(total_bytes=model.pool_bytes)
        if model.layout == "paged":
            usage = 1.0 - free / model.usable_blocks
            values[names.KV_USAGE_RATIO] = series(usage)
            values[names.PREEMPTIONS_TOTAL] = series(preemptions)
            tokens = model.num_blocks * model.block_size
            pool = KvPool(model.pool_bytes, model.num_blocks, model.block_size, tokens)
        else:
            slot = model.max_model_len * model.bytes_per_token
            values[names.WAITING_FOR_KV] = series(for_kv)
            values[names.KV_USED_BYTES] = series(running * slot)
            values[names.KV_BUDGET_BYTES] = series(np.full(t_s.shape, model.kv_budget_bytes))
        return BackendSeries(
            backend=self._cell.backend,
            source="scraper",
            values=values,
            pool=pool,
            failed_t_s=np.empty(0),
            failures=(),
            missing=(),
            n_scrapes=int(t_s.size),
        )


def _record(cell: CellKey, case: Case, request: _Request) -> RequestRecord:
    times, sequence = request.tokens_us, request.sequence
    gaps = (times[0], *(b - a for a, b in pairwise(times)))
    return RequestRecord(
        worker="w",
        seq=sequence.key,
        cell=cell,
        user=request.user,
        outcome="ok",
        t_intended_s=request.t_sent_s,
        t_sent_s=request.t_sent_s,
        t_end_s=request.t_sent_s + times[-1] * 1e-6 + _AFTER_S,
        clock="kernel",
        token_us=gaps,
        token_source="token_ids",
        asked_prompt_tokens=case.law.prompt_tokens,
        asked_output_tokens=sequence.output_tokens,
        prompt_tokens=case.law.prompt_tokens,
        output_tokens=sequence.output_tokens,
        output_tokens_source="usage",
        http_status=200,
        finish_reason="length",
        done_seen=True,
        prompt_hash=str(sequence.key),
    )
