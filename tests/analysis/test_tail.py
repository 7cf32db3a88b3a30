"""Why this p99: one request made late in one way, among many that are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from harness.analysis.client_samples import client_samples
from harness.analysis.latency import request_times
from harness.analysis.run import analyse
from harness.analysis.summary_types import Window
from harness.analysis.table import build_tables
from harness.analysis.tail import LEAST_REQUESTS, MOST_EXPLAINED, MOST_SHOWN, explain_tail
from harness.analysis.tail_types import Tail, TailFigure, TailOf
from harness.observe import names
from harness.observe.series import BackendSeries, Series
from harness.records import RequestRecord, RunEvent
from tests.support.fake_records import cell_of, record
from tests.support.fake_server import PAGED, paged_info
from tests.support.run_builder import build_run, replace_series

#: 100 requests, one a second, each of 20 ms and 9 gaps of 10 ms
N, TTFT_US, GAP_US, GAPS = 100, 20_000, 10_000, 9
CELL = cell_of(PAGED, 1)
LATE = 50


@dataclass
class Case:
    """A calm level, and what is changed in it."""

    #: of the requests, by number
    changed: dict[int, dict[str, object]] = field(default_factory=dict)
    #: gauges and counters, one sample a second in the middle between two requests
    series: dict[str, Sequence[float]] = field(default_factory=dict)
    events: list[RunEvent] = field(default_factory=list)
    #: records beside the calm ones
    more: list[RequestRecord] = field(default_factory=list)

    def tail(self, max_num_seqs: int | None = 4) -> Tail:
        made = [calm(i, **self.changed.get(i, {})) for i in range(N)]
        table = build_tables([*made, *self.more])[CELL]
        times = request_times(table)
        sampled = np.arange(N) + 0.5
        values = {
            name: Series(sampled, np.asarray(v, np.float64)) for name, v in self.series.items()
        }
        found = explain_tail(
            paged_info(max_num_seqs=max_num_seqs),
            table,
            Window(1, 0.0, 0.0, float(N), float(N), float(N), "event", None, 1, 0, 0, 0, 0),
            np.ones(table.n, dtype=np.bool_),
            times,
            BackendSeries("paged", "scraper", values, None, np.empty(0), (), ()),
            client_samples(self.events),
        )
        assert found is not None
        return found


def calm(number: int, **changes: object) -> RequestRecord:
    facts: dict[str, object] = {
        "user": 0,
        "t_intended_s": float(number),
        "t_sent_s": float(number),
        "t_end_s": number + 0.9,
        "token_us": (TTFT_US, *([GAP_US] * GAPS)),
        "output_tokens": GAPS + 1,
    }
    return record(CELL, number, **{**facts, **changes})


def of(tail: Tail, figure: TailFigure) -> TailOf:
    return next(item for item in tail.figures if item.figure == figure)


def said(tail: Tail, figure: TailFigure) -> tuple[str, str]:
    found = of(tail, figure)
    assert found.beyond == found.explained == 1
    assert found.rows[0].sent_s == found.rows[0].after_s == LATE
    return found.rows[0].cause, found.rows[0].evidence


def slow_start(**changes: object) -> Case:
    """The first token of one request takes 600 ms."""
    late = {"token_us": (600_000, *([GAP_US] * GAPS)), **changes}
    return Case(changed={LATE: late})


def slow_stream(**changes: object) -> Case:
    """One gap of one request takes 200 ms, from 0.05 to 0.25 s."""
    late = {"token_us": (TTFT_US, *([GAP_US] * 3), 200_000, *([GAP_US] * (GAPS - 4))), **changes}
    return Case(changed={LATE: late})


def stairs(step: float, at: int = LATE) -> list[float]:
    """A counter that rises between the samples around request ``at``."""
    return [0.0 if i < at else step for i in range(N)]


def only(value: float, rest: float = 0.0) -> list[float]:
    """A gauge with another value in the sample that lies in the late request."""
    return [value if i == LATE else rest for i in range(N)]


def test_nothing_tells_why() -> None:
    cause, evidence = said(slow_start().tail(), "TTFT")
    assert cause == "not_explained" and "nothing in the records" in evidence
    assert said(slow_stream().tail(), "TPOT")[0] == "not_explained"


def test_a_little_beyond_the_median_does_not_stand_out() -> None:
    case = Case(changed={LATE: {"token_us": (22_000, *([GAP_US] * GAPS))}})
    # 22 over 20 ms
    assert said(case.tail(), "TTFT") == (
        "not_explained",
        "only 10.0 % beyond the median: nothing stands out",
    )


def test_a_long_prompt() -> None:
    assert said(slow_start(prompt_tokens=2048).tail(), "TTFT") == (
        "long_prompt",
        "2,048 prompt tokens, the median is 512",
    )
    # 700 is less than 1.5 times as long
    assert said(slow_start(prompt_tokens=700).tail(), "TTFT")[0] == "not_explained"


@pytest.mark.parametrize(
    "changes", [{"coalesced": (0,)}, {"buffered": True}], ids=["shared read", "buffered"]
)
def test_the_client_or_a_buffer(changes: dict[str, object]) -> None:
    assert said(slow_start(**changes).tail(), "TTFT")[0] == "client"


def test_a_client_that_stood_still_counts_where_it_stamps_itself() -> None:
    def stood(clock: str) -> Case:
        case = slow_start(clock=clock)
        lag = {"loop_lag_s": 0.5, "cpu_ratio": 0.1}
        case.events = [RunEvent(t_s=LATE + 0.6, kind="client_sample", detail=lag)]
        return case

    cause, evidence = said(stood("monotonic").tail(), "TTFT")
    assert cause == "client" and "stood still for 500 ms" in evidence
    # the kernel stamps arrivals whatever the client does
    assert said(stood("kernel").tail(), "TTFT")[0] == "not_explained"


def test_a_queue_at_max_num_seqs() -> None:
    case = slow_start()
    case.series = {names.WAITING: only(3), names.RUNNING: only(4, 1)}
    assert said(case.tail(), "TTFT") == (
        "queue",
        "3 requests wait meanwhile while 4 run, which is max_num_seqs",
    )


def test_a_full_pool_is_memory() -> None:
    case = slow_start()
    case.series = {
        names.WAITING: only(3), names.RUNNING: only(2, 1), names.KV_USAGE_RATIO: only(0.99, 0.2)
    }  # fmt: skip
    assert said(case.tail(), "TTFT") == (
        "memory",
        "3 requests wait meanwhile, with 99.0 % of the pool used",
    )
    # with all seats taken it is the seats that it waits for
    assert said(case.tail(max_num_seqs=2), "TTFT")[0] == "queue"
    # the contiguous server counts those that wait for KV itself
    case.series = {names.WAITING: only(3), names.WAITING_FOR_KV: only(2)}
    assert said(case.tail(), "TTFT") == ("memory", "2 requests wait for KV memory meanwhile")


def test_samples_beside_a_short_request_count_when_both_show_a_queue() -> None:
    # 300 ms: from 50 to 50.3 s, samples at 49.5 and 50.5 s
    late = {LATE: {"token_us": (300_000, *([GAP_US] * GAPS))}}
    both = Case(changed=late, series={names.WAITING: [2 if i in (49, 50) else 0 for i in range(N)]})
    cause, evidence = said(both.tail(), "TTFT")
    assert (cause, "in the samples around it" in evidence) == ("queue", True)
    one = Case(changed=late, series={names.WAITING: only(2)})
    assert said(one.tail(), "TTFT")[0] == "not_explained"


def test_a_preemption() -> None:
    case = slow_stream()
    case.series = {names.PREEMPTIONS_TOTAL: stairs(2)}
    cause, evidence = said(case.tail(), "TPOT")
    assert cause == "preemption"
    assert evidence == (
        "2 preemptions between 49.5 and 50.5 s of the level, around its longest gap, 200 ms"
    )
    # a rise elsewhere says nothing
    case.series = {names.PREEMPTIONS_TOTAL: stairs(2, at=60)}
    assert said(case.tail(), "TPOT")[0] == "not_explained"
    early = slow_start()
    early.series = {names.PREEMPTIONS_TOTAL: stairs(1)}
    assert said(early.tail(), "TTFT")[0] == "preemption"


def others(*first_s: float) -> list[RequestRecord]:
    """Requests of other users whose first tokens come at those times, 20 ms after they are sent."""
    return [
        calm(1000 + i, user=i + 1, t_intended_s=at - 0.02, t_sent_s=at - 0.02, t_end_s=at + 0.5)
        for i, at in enumerate(first_s)
    ]


def test_anothers_prefill_between_the_tokens() -> None:
    case = slow_stream()
    # its long gap runs from 50.05 to 50.25 s
    case.more = others(LATE + 0.24)
    cause, evidence = said(case.tail(), "TPOT")
    assert cause == "prefill"
    # 200 ms against 10 ms; 20 ms before its first token the other one's reading begins
    assert "1 of its 9 gaps" in evidence and "190 ms longer (usual: 0 ms)" in evidence
    # one that is read in another gap does not explain this one
    case.more = others(LATE + 0.30)
    assert said(case.tail(), "TPOT")[0] == "not_explained"


def test_others_prefill_before_the_first_token() -> None:
    case = slow_start()
    # 24 prompts one after another, 20 ms each: 480 of the 580 ms beyond the median
    case.more = others(*(LATE + 0.05 + 0.02 * i for i in range(24)))
    cause, evidence = said(case.tail(), "TTFT")
    assert cause == "prefill"
    assert "24 prompts of others were read before its first token, for some 480 ms" in evidence
    # 10 of them are 200 ms: less than half
    case.more = case.more[:10]
    assert said(case.tail(), "TTFT")[0] == "not_explained"
    # free seats and waiting requests: the queue is one of prompts
    case.more = others(*(LATE + 0.05 + 0.02 * i for i in range(24)))
    case.series = {names.WAITING: only(5), names.RUNNING: only(2)}
    assert said(case.tail(), "TTFT")[0] == "prefill"
    assert said(case.tail(max_num_seqs=2), "TTFT")[0] == "queue"


def test_a_full_pool_beside_a_long_gap() -> None:
    case = slow_stream()
    case.series = {names.KV_USAGE_RATIO: only(1.0, 1.0)}
    cause, evidence = said(case.tail(), "TPOT")
    assert cause == "memory" and "100.0 % of the KV pool used around its longest gap" in evidence


def test_what_is_shown_and_how_many_there_are() -> None:
    # 40,000 requests: 400 are beyond p99, of which 200 are explained and 10 shown
    cell = cell_of(PAGED, 1)
    slow = {i: 30_000 + i for i in range(0, 40_000, 90)}
    made = [
        record(cell, i, user=0, t_intended_s=float(i), t_sent_s=float(i), t_end_s=i + 0.5,
               token_us=(slow.get(i, TTFT_US), GAP_US), output_tokens=2)
        for i in range(40_000)
    ]  # fmt: skip
    table = build_tables(made)[cell]
    window = Window(1, 0.0, 0.0, 4e4, 4e4, 4e4, "event", None, 1, 0, 0, 0, 0)
    found = explain_tail(
        paged_info(), table, window, np.ones(table.n, dtype=np.bool_), request_times(table), None,
        client_samples([]),
    )  # fmt: skip
    assert found is not None
    ttft = of(found, "TTFT")
    assert (ttft.n, ttft.beyond, ttft.explained) == (40_000, 400, MOST_EXPLAINED)
    assert len(ttft.rows) == MOST_SHOWN and not ttft.thin
    values = [row.value_s for row in ttft.rows]
    assert values == sorted(values, reverse=True) and values[0] == pytest.approx(0.06996)
    assert sum(n for _, n in ttft.causes) == MOST_EXPLAINED
    # TPOT is the same for all: nothing lies beyond
    assert of(found, "TPOT").beyond == 0


def test_too_few_requests_have_no_tail() -> None:
    run = build_run((PAGED,), (1,), (5,))
    run.records = run.records[: LEAST_REQUESTS - 1]
    cell = analyse(run.manifest, run.records, run.events, run.series).cells[0]
    assert cell.tail is None


def change_series(
    make: Callable[[Series], Mapping[str, np.ndarray]], of_name: str
) -> Callable[[BackendSeries], BackendSeries]:
    def changed(old: BackendSeries) -> BackendSeries:
        base = old.values[of_name]
        added = {name: Series(base.t_s, v) for name, v in make(base).items()}
        return replace_series(old, added)

    return changed


def test_e111_a_pool_that_preempts_has_its_tail_from_there() -> None:
    # 64 users on 25 seats of memory: 480 preemptions over the level, TTFT of seconds
    run = build_run((PAGED,), (64,), (100,))
    change = change_series(
        lambda base: {names.PREEMPTIONS_TOTAL: np.linspace(0, 480, len(base))}, names.WAITING
    )
    run.series["paged"] = change(run.series["paged"])
    summary = analyse(run.manifest, run.records, run.events, run.series)
    tail = summary.cells[0].tail
    assert tail is not None
    ttft = of(tail, "TTFT")
    assert [cause for cause, _ in ttft.causes] == ["preemption"]
    assert ttft.p50_s > 2.0


def test_e112_full_and_without_a_counter_it_is_memory() -> None:
    run = build_run((PAGED,), (64,), (100,))
    tail = analyse(run.manifest, run.records, run.events, run.series).cells[0].tail
    assert tail is not None
    assert [cause for cause, _ in of(tail, "TTFT").causes] == ["memory"]
    assert "of the pool used" in of(tail, "TTFT").rows[0].evidence
