"""What a prefix cache did, from records and events made by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from harness.analysis.run import analyse
from harness.analysis.scenario_types import ScenarioFigures
from harness.analysis.sharing import between_turns
from harness.analysis.summary_types import RunSummary, Window
from harness.analysis.table import CellTable, TableBuilder
from harness.observe import names
from harness.observe.series import BackendSeries, KvPool, Series
from harness.records import CellKey, RequestRecord, RunEvent
from harness.workload import Asks, Conversations, SharedPrefix
from tests.support.fake_records import record
from tests.support.fake_server import PAGED
from tests.support.run_builder import manifest, replace_manifest

CELL = CellKey("paged", "paged", 100, 3, 1.0)
PREFIX = SharedPrefix(prefix_tokens=80, reuse=(0.0, 0.5))
TALK = Conversations(system_tokens=40, turns=3, user_tokens=20, think_s=1.0)


def request(
    cell: CellKey, seq: int, at_s: float, ttft_s: float, **changes: object
) -> RequestRecord:
    """Three tokens, 0.1 s apart."""
    facts: dict[str, object] = {
        "user": 0,
        "t_intended_s": at_s,
        "t_sent_s": at_s,
        "t_end_s": at_s + ttft_s + 0.2,
        "token_us": (round(ttft_s * 1e6), 100_000, 100_000),
        "prompt_hash": f"{cell.label}-{seq}",
    }
    return record(cell, seq, **{**facts, **changes})


def level(cell: CellKey, start_s: float, close_s: float, end_s: float) -> list[RunEvent]:
    return [
        RunEvent(t_s=start_s, kind="level_start", cell=cell, detail={"users": 1}),
        RunEvent(t_s=close_s, kind="window_close", cell=cell),
        RunEvent(t_s=end_s, kind="level_end", cell=cell, detail={"reason": "complete"}),
    ]


def series(**gauges: list[float]) -> BackendSeries:
    """A sample per second from 0 on."""
    values = {
        name: Series(np.arange(len(v), dtype=np.float64), np.array(v)) for name, v in gauges.items()
    }
    return BackendSeries(
        backend="paged",
        source="scraper",
        values=values,
        pool=KvPool(total_bytes=102_400, num_blocks=10, block_size=10, size_tokens=100),
        failed_t_s=np.empty(0),
        failures=(),
        missing=(),
        n_scrapes=1,
    )


def figures(
    asks: Asks, records: list[RequestRecord], events: list[RunEvent], observed: BackendSeries
) -> RunSummary:
    made = manifest((PAGED,), (1,), (2,))
    work = msgspec.structs.replace(made.workload, asks=asks)
    made = replace_manifest(made, workload=work, t0_s=0.0, t_end_s=30.0)
    return analyse(made, records, events, {"paged": observed})


def prefix_run() -> ScenarioFigures:
    """Level one, 0 to 10 s, shares nothing; level two, 10 to 20 s, every second one."""
    without = msgspec.structs.replace(CELL, variant="reuse 0")
    with_ = msgspec.structs.replace(CELL, variant="reuse 0.5")
    records = [request(without, n, 1.0 + n, 0.5, shared_tokens=0) for n in range(8)]
    records += [
        request(with_, 8 + n, 11.0 + n, 0.1 if n % 2 else 0.5, shared_tokens=80 * (n % 2))
        for n in range(8)
    ]
    events = level(without, 0.5, 8.5, 9.5) + level(with_, 10.5, 18.5, 19.5)
    queries = [100.0 * t for t in range(21)]
    hits = [0.0 if t < 11 else 30.0 * (t - 11) for t in range(21)]
    observed = series(
        **{
            names.RUNNING: [1.0] * 21,
            names.KV_USED_BYTES: [2048.0] * 11 + [1024.0] * 10,
            names.PREFIX_QUERIES_TOTAL: queries,
            names.PREFIX_HITS_TOTAL: hits,
        }
    )
    return figures(PREFIX, records, events, observed).scenario


def test_a_row_per_share() -> None:
    """The window opens when the first request has ended, so that one is not counted: 7 are left,
    of the second level numbers 1 to 7, of which 4 share 80 of 100 tokens.
    """
    without, with_ = prefix_run().prefixes
    assert (without.n, without.n_shared, without.planned_ratio) == (7, 0, 0.0)
    assert (with_.n, with_.n_shared) == (7, 4)
    assert with_.planned_ratio == pytest.approx(4 * 80 / 700)
    assert without.hit_ratio == 0.0
    # 30 tokens found of 100 looked up in every second
    assert with_.hit_ratio == pytest.approx(0.3)
    assert with_.ttft_shared_s.value(50) == pytest.approx(0.1)
    assert with_.ttft_own_s.value(50) == pytest.approx(0.5)
    assert without.ttft_shared_s.n == 0
    assert (without.used_bytes_each, with_.used_bytes_each) == (2048, 1024)


def test_variants_are_judged_apart() -> None:
    without = msgspec.structs.replace(CELL, variant="reuse 0")
    with_ = msgspec.structs.replace(CELL, variant="reuse 0.5")
    records = [request(without, n, 1.0 + n, 0.5) for n in range(4)]
    records += [request(with_, 8 + n, 11.0 + n, 0.1) for n in range(4)]
    events = level(without, 0.5, 4.5, 5.5) + level(with_, 10.5, 14.5, 15.5)
    summary = figures(PREFIX, records, events, series(**{names.RUNNING: [1.0] * 20}))
    assert [v.variant for v in summary.verdicts] == ["reuse 0", "reuse 0.5"]
    assert all(v.predicted is None and v.no_prediction for v in summary.verdicts)
    # the server states no prefix cache
    assert [row.hit_ratio for row in summary.scenario.prefixes] == [None, None]


def talk_records() -> list[RequestRecord]:
    """Two conversations of three turns; a prompt grows by 3 + 20 tokens each turn."""
    made = []
    for conversation in (1, 2):
        for turn in (1, 2, 3):
            n = (conversation - 1) * 3 + turn - 1
            prompt = 60 + 23 * (turn - 1)
            made.append(
                request(
                    CELL,
                    n,
                    1.0 + 2 * n,
                    0.1 * turn,
                    conversation=conversation,
                    turn=turn,
                    asked_prompt_tokens=prompt,
                    prompt_tokens=prompt,
                    shared_tokens=prompt - 20,
                    cached_prompt_tokens=prompt - 30,
                )
            )
    return made


def test_turn_by_turn() -> None:
    """The window opens at the end of the first request, at 1.3 s, and closes at 12 s."""
    observed = series(
        **{
            names.RUNNING: [0.0] * 15,
            names.KV_USED_BYTES: [100.0, 300.0] * 7 + [100.0],
            names.PREFIX_QUERIES_TOTAL: [float(100 * t) for t in range(15)],
            names.PREFIX_HITS_TOTAL: [float(50 * t) for t in range(15)],
        }
    )
    summary = figures(TALK, talk_records(), level(CELL, 0.9, 12.0, 13.0), observed)
    turns = summary.scenario.turns
    assert [(r.turn, r.n) for r in turns] == [(1, 1), (2, 2), (3, 2)]
    assert [r.prompt_tokens for r in turns] == [60, 83, 106]
    assert [r.known_tokens for r in turns] == [40, 63, 86]
    assert [r.cached_tokens for r in turns] == [30, 53, 76]
    assert [r.ttft_s.value(50) for r in turns] == pytest.approx([0.1, 0.2, 0.3])
    (row,) = summary.scenario.conversations
    assert (row.conversations, row.requests, row.hit_ratio) == (2, 5, 0.5)
    planned = (40 + 2 * 63 + 2 * 86) / (60 + 2 * 83 + 2 * 106)
    assert row.planned_ratio == pytest.approx(planned)
    assert row.kept_share == pytest.approx(0.5 / planned)
    # 102,400 B / (10 blocks x 10 tokens)
    assert row.bytes_per_token == 1024
    assert row.between_tokens is not None
    assert row.between_bytes == row.between_tokens * 1024
    assert row.used_bytes_max == 300
    # users think, so nobody expects all of them in flight
    assert "window_not_full" not in {finding.code for finding in summary.findings}
    assert summary.cells[0].unjudged is None


def built(records: list[RequestRecord]) -> CellTable:
    builder = TableBuilder(CELL)
    for item in records:
        builder.add(item)
    return builder.build()


def window(open_s: float, close_s: float) -> Window:
    return Window(
        users=1, start_s=0.0, open_s=open_s, close_s=close_s, last_counted_s=None, end_s=None,
        closed_by="event", reason=None, full_share=None, ramp_s=None, warmup_s=None,
        follow_s=None, drain_s=None,
    )  # fmt: skip


def test_what_lies_between_turns_by_hand() -> None:
    """Turn 1 of a conversation ends at 1.3 s and turn 2 is sent at 3 s: 60 + 3 tokens for 1.7 s.
    Turn 2 ends at 3.4 s, turn 3 is sent at 5 s: 83 + 3 tokens for 1.6 s. Then nothing is kept,
    until turn 1 of the next one has ended at 7.3 s. Over [0, 7] that is 244.7 token seconds.
    """
    found = between_turns(built(talk_records()), window(0.0, 7.0))
    assert found == pytest.approx((63 * 1.7 + 86 * 1.6) / 7.0)


def test_nothing_lies_between_turns_that_never_came() -> None:
    assert between_turns(built(talk_records()[:1]), window(0.0, 7.0)) == 0.0
    assert between_turns(built(talk_records()), window(7.0, 7.0)) is None


def test_what_a_server_does_not_state_is_absent() -> None:
    records = [msgspec.structs.replace(r, cached_prompt_tokens=None) for r in talk_records()]
    observed = series(**{names.RUNNING: [0.0] * 15})
    scenario = figures(TALK, records, level(CELL, 0.9, 12.0, 13.0), observed).scenario
    assert {r.cached_tokens for r in scenario.turns} == {None}
    (row,) = scenario.conversations
    assert (row.hit_ratio, row.kept_share, row.used_bytes) == (None, None, None)
