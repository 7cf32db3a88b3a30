"""When a window closes: by its numbers, by a rule of its own, by hand in an open loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.load.level import Level, Phase
from harness.load.open_level import OpenLevel, OpenPhase
from harness.load.phases import LevelLimits, Progress
from harness.plan.arrivals import RateSchedule
from harness.records import RunEvent
from harness.rundir import Journal, RunDir
from tests.load.test_level import CELL, FakeClock


@pytest.mark.parametrize(
    ("now_s", "open_s", "sent", "reason"),
    [
        (10.0, None, 0, None),
        (10.0, 2.0, 3, None),
        # 4 requests, but only 3 s of 5
        (5.0, 2.0, 4, None),
        (7.0, 2.0, 4, "complete"),
        (61.0, None, 0, "time_limit"),
        (61.0, 2.0, 3, "time_limit"),
        (61.0, 2.0, 4, "complete"),
    ],
)
def test_limits_in_numbers(
    now_s: float, open_s: float | None, sent: int, reason: str | None
) -> None:
    limits = LevelLimits(min_requests=4, min_level_s=5.0, max_level_s=60.0)
    assert limits.reason(Progress(1.0, open_s, now_s, sent)) == reason


class Told:
    """Closes when a test says so."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.seen: list[Progress] = []

    def reason(self, so_far: Progress) -> str | None:
        self.seen.append(so_far)
        return self.why


def test_a_level_closes_for_the_reason_that_its_rule_gives() -> None:
    clock, events, rule = FakeClock(), list[RunEvent](), Told()
    level = Level(CELL, 1, rule, clock, events.append)
    level.start()
    assert level.open_s is None
    level.begun(0)
    level.sent(0, clock.now)
    clock.now += 1.0
    level.ended(0, clock.now)
    opened_s = clock.now
    assert (level.phase, level.open_s) == (Phase.MEASURE, opened_s)
    rule.why = "collapse"
    clock.now += 1.0
    level.tick()
    assert level.phase is Phase.DONE
    assert level.summary().reason == "collapse"
    ends = [(e.kind, e.detail["reason"]) for e in events if e.kind != "level_start"]
    assert ends == [("window_close", "collapse"), ("level_end", "collapse")]
    assert rule.seen[-1] == Progress(opened_s - 1.0, opened_s, opened_s + 1.0, 0)


def rate_schedule() -> RateSchedule:
    """One request a second, counted from 2 s to 30 s."""
    return RateSchedule(1.0, None, "s", warmup_s=2.0, min_requests=10**9, min_s=0.0, max_s=30.0)


def test_a_window_that_closes_early_counts_what_was_due_in_it() -> None:
    events: list[RunEvent] = []
    level = OpenLevel(CELL, rate_schedule(), events.append)
    level.close(5.0, "complete")
    assert level.open_s is None
    level.start(100.0)
    assert level.open_s == 102.0
    due = list(zip(level.schedule.arrivals(), range(12), strict=False))
    level.begun(1, due[3][0])
    level.close(108.5, "complete")
    assert level.phase is OpenPhase.FOLLOW
    # due at 1, 2, ... 12 s: counted from 2 s to 8.5 s
    assert [level.schedule.counts(a) for a, _ in due] == [False, *[True] * 7, *[False] * 4]
    # the load stays while a counted one is in flight
    assert level.wants(due[11][0])
    level.ended(1)
    assert not level.wants(due[11][0])
    level.close(109.0, "collapse")
    level.finish(110.0)
    assert [(e.kind, e.t_s) for e in events[1:]] == [("window_close", 108.5), ("level_end", 110.0)]
    assert {e.detail["reason"] for e in events[1:]} == {"complete"}
    summary = level.summary()
    assert (summary.reason, summary.window_s) == ("complete", 6.5)
    # to the end of the last request: the budget of a search reckons with it
    assert summary.took_s == 10.0
    assert OpenLevel(CELL, rate_schedule(), events.append).summary().took_s is None


def test_a_schedule_that_is_cut_leaves_the_other_whole() -> None:
    whole = rate_schedule()
    cut = whole.until(8.0, "collapse")
    assert (whole.close_s, whole.reason) == (30.0, "time_limit")
    assert (cut.close_s, cut.reason, cut.open_s) == (8.0, "collapse", 2.0)


def test_a_run_directory_is_read_from_a_place_on(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "r")
    journal: Journal = run.events_journal()
    journal.append(RunEvent(t_s=1.0, kind="run_start"))
    here = run.written()
    assert set(here) == {"events.jsonl"}
    journal.append(RunEvent(t_s=2.0, kind="run_end"))
    journal.close()
    assert [e.kind for e in RunDir(run.path, here).events()] == ["run_end"]
    assert [e.kind for e in run.events()] == ["run_start", "run_end"]
