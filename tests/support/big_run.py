"""A run directory of any size: seeded, written with the product's own types and journals.

A closed loop whose every time is drawn beforehand, so that what a report must show follows
from the arrays below and needs no reading of records (see ``expected``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.records import CellKey, RequestRecord, RunEvent, Scrape
from harness.rundir import GzipJournal, RunDir
from harness.workload import Slo
from tests.support.fake_records import cell_of
from tests.support.fake_server import FakeServer, paged_info, static_info
from tests.support.run_builder import manifest

LEVELS = (32, 128, 512)
#: of all requests of a backend, how many are sent at each level, in eighths
SHARES = (1, 2, 5)
EVENTS = 10
ASKED = 12
#: of a failed request: it ends after this many events
EVENTS_OF_FAILED = 3
PAUSE_S = 0.0003
FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
SLO = Slo(ttft_s=0.5, tpot_s=0.05)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Cell:
    """The truth about one cell; arrays of shape [requests], tokens [requests, EVENTS]."""

    key: CellKey
    #: two of the ten events carry two tokens each
    bursts: bool
    user: Ints
    sent_s: Floats
    end_s: Floats
    token_us: Ints
    ok: Bools
    #: the index of a coalesced event, -1 without one
    coalesced: Ints
    start_s: float
    close_s: float

    @property
    def n(self) -> int:
        """Requests of the cell."""
        return int(self.sent_s.size)

    @property
    def tokens(self) -> Ints:
        """Tokens of each event of a whole answer, shape [EVENTS]."""
        carried = np.ones(EVENTS, np.int64)
        if self.bursts:
            carried[[4, 8]] = 2
        return carried


def servers() -> tuple[FakeServer, FakeServer]:
    """The two backends; only their names and limits count here."""
    limits = {"max_num_seqs": 1024, "kv_budget_bytes": 2**34, "num_blocks": 2**17}
    return (
        FakeServer(paged_info(**limits), seats=1024),
        FakeServer(static_info(max_num_seqs=1024, kv_budget_bytes=2**34), seats=1024),
    )


def draw_cells(requests: int, seed: int) -> Iterator[Cell]:
    """One cell after the other, together exactly ``requests`` requests."""
    rng = np.random.default_rng(seed)
    parts = [
        (level, server, requests * share / (sum(SHARES) * 2))
        for level, share in zip(LEVELS, SHARES, strict=True)
        for server in servers()
    ]
    ends = np.round(np.cumsum([part for _, _, part in parts])).astype(int)
    now, before = 1001.0, 0
    for (level, server, _), end in zip(parts, ends, strict=True):
        cell = draw_cell(rng, server, level, int(end) - before, now)
        now, before = float(cell.end_s.max()) + 0.5, int(end)
        yield cell


def draw_cell(
    rng: np.random.Generator, server: FakeServer, level: int, count: int, start_s: float
) -> Cell:
    """A level of a closed loop that stops sending after ``count`` requests."""
    turns = count // level + 4 + round(4 * (count / level) ** 0.5)
    size = level * turns
    first = rng.lognormal(np.log(0.12), 0.3, size)
    gaps = rng.lognormal(np.log(0.025), 0.25, (size, EVENTS - 1))
    token_us = np.round(np.column_stack([first, gaps]) * 1e6).astype(np.int64)
    ok = rng.random(size) >= 0.002
    kept = np.where(ok, EVENTS, EVENTS_OF_FAILED)
    arrivals = np.cumsum(token_us, axis=1)
    took = arrivals[np.arange(size), kept - 1] * 1e-6 + 0.0001
    turn = took.reshape(level, turns) + PAUSE_S
    begun = start_s + 0.0001 * np.arange(level)[:, None] + np.cumsum(turn, axis=1) - turn
    sent = begun.ravel()
    chosen = np.argsort(sent, kind="stable")[:count]
    sent, ended = sent[chosen], sent[chosen] + took[chosen]
    marked = rng.random(count) < 0.02
    return Cell(
        key=cell_of(server, level),
        bursts=server.info.kind == "vllm",
        user=chosen // turns,
        sent_s=sent,
        end_s=ended,
        token_us=token_us[chosen],
        ok=ok[chosen],
        coalesced=np.where(marked, rng.integers(1, EVENTS_OF_FAILED, count), -1),
        start_s=start_s,
        # sent in the last three turns or so is uncounted and keeps the load full meanwhile
        close_s=float(sent[max(0, count - 3 * level)]),
    )


def records(cell: Cell, first_seq: int) -> Iterator[RequestRecord]:
    """The cell's records as a load writes them: in the order in which requests end."""
    carried = tuple(cell.tokens.tolist())
    total = sum(carried)
    order = np.argsort(cell.end_s, kind="stable")
    columns = (cell.user, cell.sent_s, cell.end_s, cell.ok, cell.coalesced)
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    for number, (user, sent_s, end_s, ok, coalesced) in enumerate(rows):
        kept = EVENTS if ok else EVENTS_OF_FAILED
        yield RequestRecord(
            worker="local",
            seq=first_seq + number,
            cell=cell.key,
            user=user,
            outcome="ok" if ok else "truncated",
            t_intended_s=sent_s - PAUSE_S,
            t_sent_s=sent_s,
            t_end_s=end_s,
            headers_s=0.0021,
            clock="kernel",
            token_us=tuple(cell.token_us[order[number]].tolist())[:kept],
            token_n=carried[:kept] if cell.bursts else None,
            coalesced=(coalesced,) if coalesced >= 0 else (),
            token_source="token_ids",
            asked_prompt_tokens=cell.key.prompt_tokens,
            asked_output_tokens=ASKED,
            prompt_tokens=cell.key.prompt_tokens,
            output_tokens=total if ok else None,
            output_tokens_source="usage" if ok else None,
            http_status=200,
            error=None if ok else "the stream ended before its last token",
            finish_reason="stop" if ok else None,
            done_seen=ok,
            prompt_hash=f"{first_seq + number:016x}",
            bytes_received=2300,
        )


def events(cell: Cell) -> list[RunEvent]:
    """The cell's marks, and the client's sample of itself once a second."""
    end_s = float(cell.end_s.max())
    level = int(cell.key.level)
    samples = [
        RunEvent(
            t_s=float(at),
            kind="client_sample",
            detail={"loop_lag_s": 0.003, "cpu_ratio": 0.4, "in_flight": level},
        )
        for at in np.arange(cell.start_s + 1, end_s)
    ]
    marks = [
        RunEvent(t_s=cell.start_s, kind="level_start", cell=cell.key, detail={"users": level}),
        RunEvent(t_s=cell.close_s, kind="window_close", cell=cell.key),
        RunEvent(t_s=end_s, kind="level_end", cell=cell.key, detail={"reason": "complete"}),
    ]
    return sorted(samples + marks, key=lambda event: event.t_s)


def scrapes(cell: Cell) -> Iterator[Scrape]:
    """Whole pages of real servers, once a second, with this level's gauges in them."""
    paged = cell.bursts
    page = FIXTURES / ("vllm-0.32.0-load-a.txt" if paged else "contiguous-static.txt")
    used = min(1.0, cell.key.level / 600)
    values = {
        "vllm:num_requests_running": cell.key.level,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": used,
        "contiguous_requests_running": cell.key.level,
        "contiguous_requests_waiting": 0,
        "contiguous_requests_waiting_for_kv": 0,
        "contiguous_kv_reserved_bytes": used * 2**34,
        "contiguous_kv_used_bytes": used * 2**34,
        "contiguous_kv_budget_bytes": 2**34,
    }
    text = page.read_text()
    for name, value in values.items():
        text = re.sub(rf"^({name}(?:{{[^}}]*}})?) .*$", rf"\1 {value}", text, flags=re.MULTILINE)
    for at in np.arange(cell.start_s + 0.5, float(cell.end_s.max())):
        yield Scrape(t_s=float(at), took_s=0.004, status=200, text=text)


def write_big_run(results_dir: Path, requests: int, seed: int = 0) -> tuple[Path, list[Cell]]:
    """Write the run as a load would; its directory, and the truth about its cells."""
    chosen = servers()
    plan = manifest(chosen, LEVELS, [100] * len(LEVELS), slo=SLO, max_failure_rate=0.01)
    run = RunDir.create(results_dir, plan.run_id)
    run.write_manifest(plan)
    record_journal, event_journal = run.records_journal(), run.events_journal()
    pages = {s.info.name: GzipJournal(run.scrape_path(s.info.name)) for s in chosen}
    cells: list[Cell] = []
    written = 0
    for cell in draw_cells(requests, seed):
        for record in records(cell, written):
            record_journal.append(record)
        for event in events(cell):
            event_journal.append(event)
        for scrape in scrapes(cell):
            pages[cell.key.backend].append(scrape)
        written += cell.n
        cells.append(cell)
    for journal in (record_journal, event_journal, *pages.values()):
        journal.close()
    return run.path, cells


def expected(cell: Cell) -> dict[str, float]:
    """What a report must say of a cell, from the arrays alone."""
    open_s = max(float(cell.end_s[cell.user == user].min()) for user in np.unique(cell.user))
    counted = (cell.sent_s >= open_s) & (cell.sent_s <= cell.close_s)
    good = counted & cell.ok
    ttft = cell.token_us[good, 0] * 1e-6
    gaps = cell.token_us[good, 1:].ravel() * 1e-6
    arrivals = cell.sent_s[:, None] + np.cumsum(cell.token_us, axis=1) * 1e-6
    inside = (arrivals > open_s) & (arrivals <= cell.close_s) & cell.ok[:, None]
    e2e = cell.token_us[good].sum(axis=1) * 1e-6
    tpot = (e2e - ttft) / (cell.tokens.sum() - 1)
    return {
        "recorded": cell.n,
        "ok": int(good.sum()),
        "failed": int((counted & ~cell.ok).sum()),
        "ttft_p50": percentile(ttft, 50),
        "ttft_p99": percentile(ttft, 99),
        "itl_p99": percentile(gaps, 99),
        "tpot_p95": percentile(tpot, 95),
        "output_tokens_per_s": float((inside * cell.tokens).sum() / (cell.close_s - open_s)),
        "coalesced_share": float((cell.coalesced[good] >= 0).sum() / (good.sum() * EVENTS)),
    }


def percentile(values: Floats, p: int) -> float:
    """Linear interpolation between the closest ranks, counted from 0: p / 100 x (n - 1)."""
    ranked = sorted(values.tolist())
    rank = p / 100 * (len(ranked) - 1)
    low = int(rank)
    high = min(low + 1, len(ranked) - 1)
    return float(ranked[low] + (ranked[high] - ranked[low]) * (rank - low))
