"""Synthetic runs with known truth: a closed loop in front of a server that is a formula.

The server admits ``seats`` requests at a time, first come first served; prefill takes
``prefill_s``, each further token ``tpot_s`` plus ``tpot_per_running_s`` for each request that
runs at that level. Nothing is random but a small jitter from a fixed seed, so every figure
that a report must show can be computed by hand.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.manifest import BackendInfo, Manifest
from harness.observe import names
from harness.observe.series import BackendSeries, KvPool, Series
from harness.records import CellKey, RequestRecord, RunEvent, Scalar, Scrape
from harness.rundir import GzipJournal, RunDir
from harness.workload import Slo, Workload

PROMPT, OUTPUT = 512, 128
MIB = 1024 * 1024


@dataclass(frozen=True)
class FakeServer:
    """The truth about a server."""

    info: BackendInfo
    seats: int
    prefill_s: float = 0.024
    tpot_s: float = 0.0055
    tpot_per_running_s: float = 0.0004

    def tpot_at(self, level: int) -> float:
        return self.tpot_s + self.tpot_per_running_s * min(level, self.seats)


def paged_info(**changes: object) -> BackendInfo:
    """128 blocks of 128 tokens: 127 usable, 5 a request of 512 + 128, so 25 requests."""
    facts: dict[str, object] = {
        "name": "paged",
        "url": "http://127.0.0.1:8000",
        "kind": "vllm",
        "mode": "paged",
        "model": "tiny",
        "engine_version": "0.32.0",
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 256,
        "kv_budget_bytes": 16 * MIB,
        "block_size": 128,
        "num_blocks": 128,
        "kv_bytes_per_token": 1024,
        "source": "launched",
    }
    return BackendInfo(**{**facts, **changes})  # type: ignore[arg-type]


def static_info(**changes: object) -> BackendInfo:
    """16 MiB / (2,048 tokens x 1,024 B) = 8 slots."""
    facts: dict[str, object] = {
        "name": "contiguous",
        "url": "http://127.0.0.1:8001",
        "kind": "contiguous",
        "mode": "static",
        "block_size": None,
        "num_blocks": None,
        "engine_version": "0.1.0",
    }
    return paged_info(**{**facts, **changes})


PAGED = FakeServer(paged_info(), seats=25)
STATIC = FakeServer(static_info(), seats=8, prefill_s=0.05, tpot_s=0.009)


@dataclass
class Run:
    """Everything a run directory holds, in memory."""

    manifest: Manifest
    records: list[RequestRecord] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    #: backend -> (scrape times, page text)
    pages: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    series: dict[str, BackendSeries] = field(default_factory=dict)


def manifest(
    servers: Sequence[FakeServer] = (PAGED, STATIC),
    levels: Sequence[float] = (1, 4, 16, 32),
    min_requests: Sequence[int] = (20, 100, 200, 400),
    slo: Slo | None = None,
    **changes: object,
) -> Manifest:
    facts: dict[str, object] = {
        "schema_version": 1,
        "run_id": "20260101-000000-test",
        "kvknee_version": "0.1.0",
        "status": "complete",
        "t0_s": 1000.0,
        "t0_wall_s": 1_767_225_600.0,
        "t_end_s": 2000.0,
        "workload": Workload(
            scenario="concurrency",
            endpoint="/v1/completions",
            prompt_tokens=PROMPT,
            output_tokens=OUTPUT,
            levels=tuple(float(level) for level in levels),
            seed=0,
            min_requests=tuple(min_requests),
            min_level_s=10.0,
            max_level_s=120.0,
            request_timeout_s=60.0,
            idle_timeout_s=30.0,
        ),
        "slo": slo or Slo(ttft_s=0.5, tpot_s=0.05),
        "max_failure_rate": 0.0,
        "backends": tuple(server.info for server in servers),
        "fingerprint": {"model": "tiny", "prompt_tokens": PROMPT, "output_tokens": OUTPUT},
        "environment": {"cpu": "2 cores", "python": "3.11"},
        "scrape_interval_s": 1.0,
    }
    return Manifest(**{**facts, **changes})  # type: ignore[arg-type]


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


@dataclass
class Gauges:
    """The server's state over time, one value per sample."""

    t_s: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    prompt_total: list[float] = field(default_factory=list)

    def sample(self, run: LevelRun, interval_s: float) -> None:
        before = self.prompt_total[-1] if self.prompt_total else 0.0
        for t in np.arange(run.start_s, run.end_s, interval_s):
            live = [j for j in run.jobs if j.start_s <= t < j.end_s]
            held = [
                PROMPT + (int((t - j.first_s) / j.tpot_s) + 1 if t >= j.first_s else 0)
                for j in live
            ]
            self.t_s.append(float(t))
            self.running.append(len(live))
            self.waiting.append(sum(1 for j in run.jobs if j.sent_s <= t < j.start_s))
            self.tokens.append(sum(held))
            self.blocks.append(sum(math.ceil((n + 1) / 128) for n in held))
            self.prompt_total.append(before + PROMPT * sum(1 for j in run.jobs if j.first_s <= t))


def series_of(server: FakeServer, gauges: Gauges) -> BackendSeries:
    """What the observe half would make of these gauges."""

    def series(values: Sequence[float] | NDArray[np.float64]) -> Series:
        return Series(np.array(gauges.t_s), np.array(values, dtype=np.float64))

    info = server.info
    budget = float(info.kv_budget_bytes or 0)
    n = len(gauges.t_s)
    values: dict[str, Series] = {
        names.RUNNING: series(gauges.running),
        names.WAITING: series(gauges.waiting),
        names.KV_BUDGET_BYTES: series([budget] * n),
        names.PROMPT_TOKENS_TOTAL: series(gauges.prompt_total),
    }
    pool = KvPool(total_bytes=info.kv_budget_bytes)
    if info.kind == "vllm":
        block_bytes = budget / (info.num_blocks or 1)
        pool = KvPool(
            total_bytes=info.kv_budget_bytes,
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            size_tokens=(info.num_blocks or 0) * (info.block_size or 0),
        )
        blocks = np.array(gauges.blocks, dtype=np.float64)
        values |= {
            names.KV_USAGE_RATIO: series(blocks / 127),
            names.KV_USED_BYTES: series(blocks * block_bytes),
            names.KV_RESERVED_BYTES: series([budget] * n),
            names.PREEMPTIONS_TOTAL: series([0.0] * n),
            names.PREFIX_QUERIES_TOTAL: series(gauges.prompt_total),
            names.PREFIX_HITS_TOTAL: series([0.0] * n),
        }
    else:
        slot = (info.max_model_len or 0) * (info.kv_bytes_per_token or 0)
        values |= {
            names.WAITING_FOR_KV: series(gauges.waiting),
            names.KV_USED_BYTES: series(np.array(gauges.running) * float(slot)),
            names.KV_RESERVED_BYTES: series(np.array(gauges.running) * float(slot)),
            names.KV_TOKENS_HELD: series(gauges.tokens),
        }
    return BackendSeries(
        backend=info.name,
        source="scraper",
        values=values,
        pool=pool,
        failed_t_s=np.empty(0),
        failures=(),
        missing=(),
    )


def build_run(
    servers: Sequence[FakeServer] = (PAGED, STATIC),
    levels: Sequence[int] = (1, 4, 16, 32),
    min_requests: Sequence[int] = (20, 100, 200, 400),
    interval_s: float = 1.0,
    **changes: object,
) -> Run:
    """A healthy run over all servers and levels, the servers alternating."""
    run = Run(manifest(servers, levels, min_requests, **changes))  # type: ignore[arg-type]
    gauges = {server.info.name: Gauges() for server in servers}
    now = 1001.0
    run.events.append(RunEvent(t_s=1000.0, kind="run_start"))
    for level, wanted in zip(levels, min_requests, strict=True):
        for server in servers:
            cell = cell_of(server, level)
            walked = simulate_level(server, level, now, wanted)
            run.records += level_records(cell, walked, len(run.records))
            run.events += level_events(cell, walked)
            gauges[server.info.name].sample(walked, interval_s)
            now = walked.end_s + 0.5
    run.events.append(RunEvent(t_s=now, kind="run_end"))
    run.manifest = replace_manifest(run.manifest, t_end_s=now)
    for server in servers:
        name = server.info.name
        run.series[name] = series_of(server, gauges[name])
        run.pages[name] = _pages(server, gauges[name])
    return run


def replace_manifest(old: Manifest, **changes: object) -> Manifest:
    """A copy of a manifest with some fields changed."""
    facts = {name: getattr(old, name) for name in old.__struct_fields__}
    return Manifest(**{**facts, **changes})


def replace_series(
    old: BackendSeries, values: Mapping[str, Series] | None = None, **changes: object
) -> BackendSeries:
    """A copy of a backend's series with some series or fields changed."""
    merged = {**old.values, **(values or {})}
    return replace(old, values=merged, **changes)  # type: ignore[arg-type]


def write_run(run: Run, results_dir: Path) -> Path:
    """Write the run as a load would; returns its directory."""
    directory = RunDir.create(results_dir, run.manifest.run_id)
    directory.write_manifest(run.manifest)
    append_run(directory.path, run)
    return directory.path


def append_run(path: Path, run: Run) -> None:
    """Write what came of a run, or of a part of it, behind what its directory holds."""
    directory = RunDir(path)
    for journal, lines in (
        (directory.records_journal(), run.records),
        (directory.events_journal(), run.events),
    ):
        for line in lines:
            journal.append(line)
        journal.close()
    for name, pages in run.pages.items():
        scrapes = GzipJournal(directory.scrape_path(name))
        for t_s, text in pages:
            scrapes.append(Scrape(t_s=t_s, took_s=0.004, status=200, text=text))
        scrapes.close()


def _pages(server: FakeServer, gauges: Gauges) -> list[tuple[float, str]]:
    make = _vllm_page if server.info.kind == "vllm" else _contiguous_page
    return [(t_s, make(server.info, gauges, index)) for index, t_s in enumerate(gauges.t_s)]


def _vllm_page(info: BackendInfo, gauges: Gauges, i: int) -> str:
    labels = '{engine="0",model_name="tiny"}'
    facts = {
        "num_requests_running": gauges.running[i],
        "num_requests_waiting": gauges.waiting[i],
        "kv_cache_usage_perc": gauges.blocks[i] / 127,
        "num_preemptions_total": 0,
        "prefix_cache_queries_total": gauges.prompt_total[i],
        "prefix_cache_hits_total": 0,
        "prompt_tokens_total": gauges.prompt_total[i],
        "generation_tokens_total": 0,
        "request_success_total": 0,
        **{
            f"{histogram}_seconds_{part}": 0
            for histogram in ("request_queue_time", "time_to_first_token", "inter_token_latency")
            for part in ("sum", "count")
        },
    }
    lines = [f"vllm:{name}{labels} {value}" for name, value in facts.items()]
    pool = (
        f'block_size="{info.block_size}",num_gpu_blocks="{info.num_blocks}",'
        f'kv_cache_memory_bytes="{info.kv_budget_bytes}",kv_cache_size_tokens="16384",engine="0"'
    )
    return "\n".join([*lines, f"vllm:cache_config_info{{{pool}}} 1.0", ""])


def _contiguous_page(info: BackendInfo, gauges: Gauges, i: int) -> str:
    slot = (info.max_model_len or 0) * (info.kv_bytes_per_token or 0)
    facts = {
        "requests_running": gauges.running[i],
        "requests_waiting": gauges.waiting[i],
        "requests_waiting_for_kv": gauges.waiting[i],
        "slots": 8,
        "kv_budget_bytes": info.kv_budget_bytes,
        "kv_reserved_bytes": gauges.running[i] * slot,
        "kv_used_bytes": gauges.running[i] * slot,
        "kv_tokens_held": gauges.tokens[i],
        "prompt_tokens_total": gauges.prompt_total[i],
        "generation_tokens_total": 0,
        "requests_total": 0,
        "process_resident_memory_bytes": 700 * MIB,
        **{
            f"{histogram}_seconds_{part}": 0
            for histogram in ("queue", "time_to_first_token", "inter_token_latency")
            for part in ("sum", "count")
        },
    }
    lines = [f'contiguous_{name}{{model="tiny"}} {value}' for name, value in facts.items()]
    pool = f'model="tiny",mode="static",kv_budget_bytes="{info.kv_budget_bytes}"'
    return "\n".join([*lines, f"contiguous_cache_info{{{pool}}} 1.0", ""])
