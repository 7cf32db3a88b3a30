"""The open loop in virtual time: what is sent when, what counts, what the report says of it."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import msgspec
import pytest

from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures, RunSummary
from harness.load.client import ClientOptions
from harness.load.dialect import Dialect
from harness.load.http1 import Endpoint
from harness.load.preflight import PreparedBackend
from harness.plan.levels import interleaved_cells
from harness.plan.prompts import FALLBACK_TOKENS, TokenPrompts
from harness.workload import OpenLoop, Ramp, Slo, Workload
from tests.support.fake_server import STATIC
from tests.support.run_builder import manifest
from tests.support.virtual_time import TimedWalk

INFO = msgspec.structs.replace(STATIC.info, name="a")


def backend() -> PreparedBackend:
    """Nothing connects to it."""
    return PreparedBackend(
        info=INFO,
        options=ClientOptions(Endpoint.from_url("http://127.0.0.1:1"), 300, 60),
        dialect=Dialect("m", "completions", prompt_tokens=16, token_ids=False),
        prompts=TokenPrompts(FALLBACK_TOKENS, 16, seed=0, nonce=7),
        metrics_url=None,
    )


def workload(rates: tuple[float, ...], requests: int, **loop: object) -> Workload:
    return Workload(
        scenario="open_loop",
        endpoint="completions",
        prompt_tokens=16,
        output_tokens=1,
        levels=rates,
        min_requests=(requests,) * len(rates),
        min_level_s=0.0,
        max_level_s=1000.0,
        request_timeout_s=300,
        idle_timeout_s=60,
        open_loop=OpenLoop(**loop),  # type: ignore[arg-type]
    )


def walked(work: Workload, service_s: Callable[[int], float]) -> tuple[TimedWalk, RunSummary]:
    cells = interleaved_cells([("a", INFO.mode)], work.levels, 16, 1, work.repeats)
    walk = TimedWalk(cells, work, backend(), service_s)
    walk.follow()
    return walk, summed_up(walk, work)


def summed_up(walk: TimedWalk, work: Workload) -> RunSummary:
    about = manifest([STATIC], work.levels, work.min_requests, slo=Slo(), workload=work)
    about = msgspec.structs.replace(about, backends=(INFO,))
    return analyse(about, walk.records, walk.events, {})


def only(summary: RunSummary) -> CellFigures:
    (figures,) = summary.cells
    return figures


def codes(summary: RunSummary) -> set[str]:
    # neither a server nor its metrics are there
    return {finding.code for finding in summary.findings} - {"memory_unavailable"}


def test_coordinated_omission_b45() -> None:
    """10 requests/s, 100 of them, each served in 0.01 s, one in 2 s, one sender.

    From sent, 99 take 0.01 s and one 2 s: p95 = 0.01 and p99, at rank 0.99 x 99 = 98.01 of
    the sorted values, = 0.01 + 0.01 x (2 - 0.01) = 0.0299 s.
    From intended, the n-th request behind the stalled one waits for it and n - 1 services
    of 0.01 s, having come 0.1 n s later: 2 + 0.01 n - 0.1 n = 2 - 0.09 n s. The largest are
    2, 1.91, 1.82, ..., 1.55 (n = 5, sorted place 94). p95 is at rank 94.05: 1.55 + 0.05 x 0.09
    = 1.5545; p99 at rank 98.01: 1.91 + 0.01 x 0.09 = 1.9109 s.
    """
    work = workload((10.0,), 100, burstiness=None, max_concurrency=1)
    walk, summary = walked(work, lambda seq: 2.0 if seq == 41 else 0.01)
    figures = only(summary)
    latency = figures.latency
    assert figures.counts.ok == latency.ttft_s.n == 100
    assert latency.ttft_s.value(95) == pytest.approx(0.010, abs=1e-5)
    assert latency.ttft_s.value(99) == pytest.approx(0.0299, abs=1e-5)
    assert latency.ttft_intended_s.value(95) == pytest.approx(1.5545, abs=1e-5)
    assert latency.ttft_intended_s.value(99) == pytest.approx(1.9109, abs=1e-5)
    found = figures.open_loop
    assert found is not None
    # 2 - 0.09 n > 0.01 up to n = 22 (0.02): the 22 behind the stall left late
    assert (found.kept_back, found.due, found.unsent) == (22, 100, 0)
    # the largest lateness: 1.9 s of the first behind it
    assert max(r.t_sent_s - r.t_intended_s for r in walk.records if r.t_sent_s) == (
        pytest.approx(1.9)
    )
    # kept back by order of the user: the client was not the limit, and nothing was dropped
    assert not figures.client.bound
    assert codes(summary) == {"kept_back"}
    assert figures.throughput.max_in_flight == 1


def test_without_a_limit_a_stall_holds_up_nobody() -> None:
    work = workload((10.0,), 100, burstiness=None)
    _, summary = walked(work, lambda seq: 2.0 if seq == 41 else 0.01)
    figures = only(summary)
    assert figures.latency.ttft_intended_s.value(95) == pytest.approx(0.010, abs=1e-5)
    # the stalled one and the one that is due
    assert figures.throughput.max_in_flight == 2
    assert codes(summary) == set()


def test_the_window_counts_what_is_due_in_it() -> None:
    """A rate of 10/s from 0.1 s on: 10 requests are due up to 1 s, the warm-up's end.

    The one due at 1 s counts already (rank 10), so the window holds that and 19 more: it
    closes at 2.9 s. Each takes 0.35 s: while those due at 2.6 to 2.9 s are followed, the
    uncounted ones of 3.0, 3.1 and 3.2 s still go out; the last counted one ends at 3.25 s.
    """
    work = workload((10.0,), 20, burstiness=None, warmup_s=1.0)
    walk, summary = walked(work, lambda _: 0.35)
    figures = only(summary)
    start = walk.events[0].t_s
    assert [round(r.t_intended_s - start, 6) for r in walk.records] == [
        round(0.1 * n, 6) for n in range(1, 33)
    ]
    window = figures.window
    assert window.open_s == pytest.approx(start + 1.0)
    assert window.close_s == pytest.approx(start + 2.9)
    assert window.warmup_s == pytest.approx(1.0)
    assert window.follow_s == pytest.approx(0.35)
    assert figures.counts.sent == 20
    # 0.35 s each at 10/s: 3.5 in flight on average, by Little's law
    assert figures.throughput.mean_in_flight == pytest.approx(3.5, abs=0.1)
    assert codes(summary) == set()


def test_levels_are_rates_and_repeat_the_same_arrivals_for_every_backend() -> None:
    work = msgspec.structs.replace(workload((5.0, 20.0), 30), repeats=2)
    walk, summary = walked(work, lambda _: 0.01)
    assert [figures.cell.level for figures in summary.cells] == [5.0, 5.0, 20.0, 20.0]
    assert len({record.seq for record in walk.records}) == len(walk.records)
    assert len({record.prompt_hash for record in walk.records}) == len(walk.records)
    for figures in summary.cells:
        found = figures.open_loop
        assert found is not None
        assert figures.counts.sent == found.due == 30
        assert found.rate_sent_rps == pytest.approx(found.rate_due_rps, rel=0.05)
    (verdict,) = summary.verdicts
    assert (verdict.loop, verdict.predicted) == ("open", None)


def test_a_server_that_does_not_keep_up_is_over_saturated() -> None:
    """One at a time, 0.2 s each: 5/s, while 10/s are due for 10 s.

    What is due and not ended grows by 5/s: 50 more at the end of the window than at its
    start, of 100 due; chance alone makes 3 x sqrt(100) = 30.
    """
    work = workload((2.0, 10.0), 100, burstiness=None, max_concurrency=1)
    _, summary = walked(work, lambda _: 0.2)
    slow, fast = summary.cells
    assert slow.open_loop is not None
    assert not slow.open_loop.over_saturated
    found = fast.open_loop
    assert found is not None
    assert found.over_saturated
    assert found.growth == pytest.approx(50, abs=1)
    # due + backlog: quarters of a line from 0 to 50
    assert found.outstanding == pytest.approx((6.25, 18.75, 31.25, 43.75), abs=1)
    # 100 requests need 20 s: they left at 5/s
    assert found.rate_sent_rps == pytest.approx(5.0, rel=0.02)
    assert found.rate_due_rps == pytest.approx(10.0, rel=0.02)
    assert "over_saturated" in codes(summary)
    (verdict,) = summary.verdicts
    assert (verdict.capacity.first_bad, verdict.capacity.cause) == (10.0, "compute")


def test_an_overloaded_server_is_not_followed_for_ever() -> None:
    """Every answer takes 100 s, so the counted ones are in flight long after the window.

    The schedule goes on for as long as the level was, and no longer.
    """
    work = workload((10.0,), 100, burstiness=None)
    walk, _ = walked(work, lambda _: 100.0)
    assert len(walk.records) == 200


def test_a_ramp_is_one_level_without_a_verdict() -> None:
    """1 to 9/s in 20 s: (1 + 9) / 2 x 20 = 100 requests, all in the window."""
    ramp = Ramp(strategy="linear", start_rps=1.0, end_rps=9.0, seconds=20.0)
    work = workload((9.0,), 10, burstiness=None, ramp=ramp)
    _, summary = walked(work, lambda _: 0.01)
    figures = only(summary)
    assert figures.counts.sent == 100
    assert figures.window.length_s == pytest.approx(20.0)
    assert figures.unjudged == "its rate rises from start to end"


def test_a_level_whose_user_never_came_is_skipped_with_the_reason() -> None:
    work = workload((1.0, 2.0), 100, burstiness=None)
    cells = interleaved_cells([("a", INFO.mode)], work.levels, 16, 1)
    walk = TimedWalk(cells, work, backend(), lambda _: 10.0)
    walk.walk.abort("users_lost")
    assert [(event.kind, event.cell, event.detail) for event in walk.events] == [
        ("level_skipped", cell, {"reason": "users_lost"}) for cell in cells
    ]


def test_an_aborted_walk_tells_what_still_waited() -> None:
    """1 at a time, 10 s each, 1/s due: at 15.5 s one has ended, one goes on, 13 wait.

    Due by 15.5 s are 15; sent are the first (at 1 s) and the second (at 11 s).
    """
    work = workload((1.0, 2.0), 100, burstiness=None, max_concurrency=1)
    cells = interleaved_cells([("a", INFO.mode)], work.levels, 16, 1)
    walk = TimedWalk(cells, work, backend(), lambda _: 10.0)

    def stop() -> None:
        walk.time.sleep(15.5)
        walk.walk.abort("interrupted")

    stopping = gevent.spawn(stop)
    walk.time.run(stopping)
    stopping.get()
    walk.user.join()
    ends = [e for e in walk.events if e.kind in ("level_end", "level_skipped")]
    assert [(e.kind, e.detail) for e in ends] == [
        ("level_end", {"reason": "interrupted", "unsent": 13}),
        ("level_skipped", {"reason": "interrupted"}),
    ]
    assert [record.outcome for record in walk.records] == ["ok", "cancelled"]
    assert walk.walk.finished
    assert walk.walk.wanted_users is None
    assert not walk.walk.request(None)
