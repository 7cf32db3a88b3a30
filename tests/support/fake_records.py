"""What a client records of a fake server, request by request."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from harness.records import CellKey, RequestRecord, RunEvent, Scalar
from tests.support.fake_server import OUTPUT, PROMPT, FakeServer


def cell_of(server: FakeServer, level: float) -> CellKey:
    return CellKey(server.info.name, server.info.mode, PROMPT, OUTPUT, float(level))


def record(cell: CellKey, seq: int = 0, **changes: object) -> RequestRecord:
    """One successful request: sent at 10 s, tokens at 0.5, 0.6, 0.7 s after that."""
    facts: dict[str, object] = {
        "worker": "w0",
        "seq": seq,
        "cell": cell,
        "user": seq,
        "outcome": "ok",
        "t_intended_s": 10.0,
        "t_sent_s": 10.0,
        "t_end_s": 10.7,
        "clock": "kernel",
        "token_us": (500_000, 100_000, 100_000),
        "token_source": "token_ids",
        "asked_prompt_tokens": cell.prompt_tokens,
        "asked_output_tokens": cell.output_tokens,
        "prompt_tokens": cell.prompt_tokens,
        "output_tokens": 3,
        "output_tokens_source": "usage",
        "http_status": 200,
        "finish_reason": "length",
        "done_seen": True,
        "prompt_hash": f"{cell.label}-{seq}",
    }
    return RequestRecord(**{**facts, **changes})  # type: ignore[arg-type]


def failure(cell: CellKey, seq: int, **changes: object) -> RequestRecord:
    facts: dict[str, object] = {
        "outcome": "reset",
        "token_us": (),
        "output_tokens": None,
        "output_tokens_source": None,
        "token_source": None,
        "prompt_tokens": None,
        "finish_reason": None,
        "error": "connection reset by peer",
    }
    return record(cell, seq, **{**facts, **changes})


@dataclass(frozen=True)
class Job:
    """A simulated request: sent, admitted to a seat, first token, end."""

    user: int
    sent_s: float
    start_s: float
    first_s: float
    end_s: float
    tpot_s: float


@dataclass(frozen=True)
class LevelRun:
    jobs: list[Job]
    start_s: float
    open_s: float
    close_s: float
    end_s: float


def simulate_level(
    server: FakeServer, level: int, start_s: float, min_requests: int, min_s: float = 10.0
) -> LevelRun:
    """Walk one level as the load does: warm-up, counted window, follow-up, drain."""
    rng = np.random.default_rng(level)
    tpot = server.tpot_at(level)
    ready = [(start_s + 0.001 * user, user) for user in range(level)]
    seats = [start_s] * server.seats
    jobs: list[Job] = []
    first_ends: dict[int, float] = {}
    counted, close, last_counted = 0, math.inf, math.inf
    while ready:
        now, user = heapq.heappop(ready)
        if close < math.inf and now > last_counted:
            continue
        begin = max(now, heapq.heappop(seats))
        first = begin + server.prefill_s * (1 + 0.2 * rng.random())
        end = first + tpot * (OUTPUT - 1)
        heapq.heappush(seats, end)
        jobs.append(Job(user, now, begin, first, end, tpot))
        first_ends.setdefault(user, end)
        heapq.heappush(ready, (end + 0.0005, user))
        opened = max(first_ends.values()) if len(first_ends) == level else math.inf
        if close == math.inf and now >= opened:
            counted += 1
            if counted >= min_requests and now - opened >= min_s:
                close = now
                last_counted = max(j.end_s for j in jobs if opened <= j.sent_s <= now)
    return LevelRun(
        jobs, start_s, max(first_ends.values()), close, max(j.end_s for j in jobs) + 0.01
    )


def level_records(cell: CellKey, run: LevelRun, first_seq: int) -> list[RequestRecord]:
    free_at: dict[int, float] = {}
    made: list[RequestRecord] = []
    for index, job in enumerate(run.jobs):
        ttft_us = round((job.first_s - job.sent_s) * 1e6)
        gap_us = round(job.tpot_s * 1e6)
        made.append(
            record(
                cell,
                first_seq + index,
                user=job.user,
                t_intended_s=free_at.get(job.user, job.sent_s),
                t_sent_s=job.sent_s,
                t_end_s=job.end_s + 0.0001,
                token_us=(ttft_us, *([gap_us] * (OUTPUT - 1))),
                output_tokens=OUTPUT,
            )
        )
        free_at[job.user] = job.end_s + 0.0001
    return made


def level_events(cell: CellKey, run: LevelRun) -> list[RunEvent]:
    users: dict[str, Scalar] = {"users": int(cell.level)}
    marks = [
        RunEvent(t_s=run.start_s, kind="level_start", cell=cell, detail=users),
        RunEvent(t_s=run.close_s, kind="window_close", cell=cell),
        RunEvent(t_s=run.end_s, kind="level_end", cell=cell, detail={"reason": "complete"}),
    ]
    samples = [
        RunEvent(
            t_s=float(t),
            kind="client_sample",
            detail={"loop_lag_s": 0.004, "cpu_ratio": 0.2, "in_flight": int(cell.level)},
        )
        for t in np.arange(run.start_s + 1, run.end_s, 1.0)
    ]
    return sorted([*marks, *samples], key=lambda event: event.t_s)
