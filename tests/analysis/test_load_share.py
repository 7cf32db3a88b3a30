"""Whether a level was loaded as its name says (B46), and records that come late or twice (B40)."""

from __future__ import annotations

import itertools

from harness.records import RequestRecord
from tests.analysis.one_run import cell, changed, codes, one_level, summed
from tests.support.fake_records import cell_of, failure
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run


def leaves(run: Run, users: set[int], after_s: float) -> Run:
    run.records = [r for r in run.records if r.user not in users or (r.t_sent_s or 0.0) < after_s]
    return run


def test_b46_a_level_that_lost_three_of_sixteen_users_gives_no_verdict() -> None:
    # after 4 of the 12 s 13 of 16 are in flight: at most 16 x (4 + 8 x 13/16) / 12 = 14 of 16
    summary = summed(leaves(one_level(), {1, 2, 3}, 1004))
    found = cell(summary, "paged", 16)
    assert (found.window.full_share or 1) < 0.25
    assert 13 / 16 <= (found.window.load_share or 0) < 14 / 16
    assert found.unjudged == "far fewer requests were in flight than asked for"
    finding = next(f for f in summary.findings if f.code == "window_not_full")
    assert finding.severity == "invalid"
    assert "gives no verdict" in finding.text
    assert summary.verdicts[0].capacity.status == "no_verdict"
    assert summary.verdicts[0].throughput.status == "no_verdict"


def test_b46_pauses_of_a_busy_machine_leave_the_verdict() -> None:
    # each answer is over 59.5 ms early (5 of 128 gaps of 11.9 ms), the next request leaves
    # 0.6 ms after it would have ended: of 1.54 s some 4 % are missing, and since the users
    # pause at different times, 90 ms apart, hardly ever are all 16 in flight
    def paused(_: int, old: RequestRecord) -> dict[str, object]:
        sent_s = (old.t_sent_s or 0.0) + 0.090 * old.user
        gaps = (*old.token_us[:-5], *[1] * 5)
        return {"t_sent_s": sent_s, "t_intended_s": sent_s, "token_us": gaps,
                "t_end_s": sent_s + sum(gaps) * 1e-6}  # fmt: skip

    summary = summed(changed(one_level(), paused))
    found = cell(summary, "paged", 16)
    assert (found.window.full_share or 1) < 0.5
    assert 0.95 <= (found.window.load_share or 0) < 0.97
    assert found.unjudged is None
    finding = next(f for f in summary.findings if f.code == "window_not_full")
    assert finding.severity == "warning"


def test_b46_pauses_after_failures_are_the_servers_doing() -> None:
    # every request fails after 50 ms and its user waits 350 ms: an eighth of the time
    run = one_level(4, 20)
    key = cell_of(PAGED, 4)
    run.records = [
        failure(key, i, user=i % 4, t_intended_s=1001 + i * 0.1, t_sent_s=1001 + i * 0.1,
                t_end_s=1001.05 + i * 0.1)
        for i in range(200)
    ]  # fmt: skip
    found = cell(summed(run), "paged", 4)
    assert found.window.full_share == 0.0
    assert (found.throughput.mean_in_flight or 4) < 1
    assert (found.window.load_share or 0) > 0.95
    assert found.unjudged is None


def test_b40_a_report_after_the_stop_and_one_sent_twice_lose_and_add_nothing() -> None:
    def figures(run: Run) -> tuple[int, int, int, float | None, float | None]:
        found = cell(summed(run), "paged", 16)
        return (
            found.counts.recorded,
            found.counts.ok,
            found.throughput.counted_output_tokens,
            found.throughput.output_tokens_per_s,
            found.latency.ttft_s.value(50),
        )

    def by_two_workers() -> Run:
        # each worker numbers its own records from 0, so numbers repeat between the two
        seqs = {"w0": itertools.count(), "w1": itertools.count()}

        def mine(_: int, old: RequestRecord) -> dict[str, object]:
            worker = f"w{old.user % 2}"
            return {"worker": worker, "seq": next(seqs[worker])}

        return changed(one_level(), mine)

    plain = by_two_workers()
    written = len(plain.records)
    late = by_two_workers()
    first = [r for r in late.records if r.worker == "w0"]
    second = [r for r in late.records if r.worker == "w1"]
    # w0's report of 20 records stands twice; the last 30 of w1 come after everything else,
    # though sent before the window closed
    late.records = [*second[:-30], *first, *first[20:40], *second[-30:]]
    assert len(late.records) == written + 20
    assert figures(late) == figures(plain)
    assert figures(late)[0] == len(first) + len(second) == written
    summary = summed(late)
    assert codes(summary) == {"duplicate_records"}
    assert summary.findings[0].text.startswith("20 records appeared again")
