"""The level's state machine on a clock that the test moves."""

from __future__ import annotations

from harness.load.level import Level, LevelLimits, Phase
from harness.records import CellKey, Outcome, RunEvent

CELL = CellKey("paged", "paged", 4, 3, 2.0)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1e9


class Bench:
    """A level of two users, and what it told."""

    def __init__(
        self, users: int = 2, requests: int = 3, least_s: float = 1.0, most_s: float = 60.0
    ) -> None:
        self.clock = FakeClock()
        self.events: list[RunEvent] = []
        limits = LevelLimits(requests, least_s, most_s)
        self.level = Level(CELL, users, limits, self.clock, self.events.append)
        self.level.start()

    def send(self, user: int, at: float) -> None:
        self.clock.now = at
        self.level.begun(user)
        self.level.sent(user, at)

    def end(self, user: int, at: float, outcome: Outcome = "ok") -> None:
        self.clock.now = at
        self.level.judged(user, outcome)
        self.level.ended(user, at)

    def phase(self) -> Phase:
        return self.level.phase

    def seen(self) -> list[tuple[str, float]]:
        return [(event.kind, event.t_s) for event in self.events]


def test_warm_up_ends_when_every_user_has_ended_a_request() -> None:
    bench = Bench()
    bench.send(0, 100)
    bench.send(1, 100)
    bench.end(0, 101)
    bench.send(0, 101)
    assert bench.phase() is Phase.WARMUP
    bench.end(1, 103)
    assert bench.phase() is Phase.MEASURE


def test_b48_a_slow_first_request_stays_out_of_the_window() -> None:
    bench = Bench(users=1, requests=9, least_s=0)
    bench.send(0, 100)
    bench.end(0, 130)  # 30 s of cold start
    for i in range(9):
        bench.send(0, 130 + 0.2 * i)
        bench.end(0, 130 + 0.2 * (i + 1))
    # nine counted requests of 0.2 s each, the cold one is before the window
    assert bench.phase() is Phase.DONE
    assert bench.level.summary().window_s is not None
    # the ninth was sent 8 x 0.2 = 1.6 s after the opening, and closed the window
    assert abs((bench.level.summary().window_s or 0) - 1.6) < 1e-9


def warm(bench: Bench) -> None:
    bench.send(0, 100)
    bench.send(1, 100)
    bench.end(0, 101)
    bench.end(1, 101)


def test_the_whole_walk() -> None:
    bench = Bench()
    warm(bench)
    bench.send(0, 101.0)
    bench.send(1, 101.1)
    bench.end(0, 101.9)
    # the third counted request, but the window is only 0.9 s old
    bench.send(0, 101.9)
    assert bench.phase() is Phase.MEASURE
    bench.end(1, 102.1)  # more than 1 s since 101: closed
    assert bench.phase() is Phase.FOLLOW
    # load stays full: uncounted, until the last counted one has ended
    assert bench.level.may_send
    bench.send(1, 102.1)
    bench.end(0, 103.0)
    assert bench.phase() is Phase.DRAIN
    assert not bench.level.may_send
    bench.end(1, 103.2)
    assert bench.phase() is Phase.DONE
    assert bench.seen() == [("level_start", 100), ("window_close", 102.1), ("level_end", 103.2)]
    assert bench.events[-1].detail == {"reason": "complete"}
    summary = bench.level.summary()
    assert (summary.n_ok, summary.n_failed, summary.reason) == (6, 0, "complete")
    assert abs((summary.window_s or 0) - 1.1) < 1e-9


def test_the_request_that_fills_the_window_is_inside_it() -> None:
    bench = Bench(requests=1, least_s=0)
    warm(bench)
    bench.send(0, 101.5)
    assert bench.seen()[-1] == ("window_close", 101.5)
    assert bench.phase() is Phase.FOLLOW


def test_the_time_limit_closes_a_window_that_has_too_few() -> None:
    bench = Bench(most_s=10)
    warm(bench)
    bench.send(0, 109)
    bench.clock.now = 110
    bench.level.tick()
    assert bench.phase() is Phase.FOLLOW
    bench.end(0, 111)
    assert bench.phase() is Phase.DONE
    assert bench.events[-1].detail == {"reason": "time_limit"}


def test_the_time_limit_holds_in_warm_up_and_leaves_no_window() -> None:
    bench = Bench(most_s=10)
    bench.send(0, 100)
    bench.send(1, 100)
    bench.clock.now = 110
    bench.level.tick()
    # nothing counted, so nothing to follow: the two in flight finish and that is all
    assert bench.phase() is Phase.DRAIN
    bench.end(0, 111, "timeout")
    bench.end(1, 112, "timeout")
    assert bench.phase() is Phase.DONE
    assert bench.level.summary().window_s is None


def test_failures_end_warm_up_too_and_are_told_apart() -> None:
    bench = Bench()
    bench.send(0, 100)
    bench.send(1, 100)
    bench.end(0, 100.1, "rejected")
    bench.end(1, 101, "cancelled")
    assert bench.phase() is Phase.MEASURE
    summary = bench.level.summary()
    assert (summary.n_ok, summary.n_failed) == (0, 1)


def test_a_request_sent_anew_counts_once() -> None:
    bench = Bench(requests=2, least_s=0)
    warm(bench)
    bench.send(0, 101.5)
    bench.level.sent(0, 101.6)  # a stale connection was replaced
    assert bench.phase() is Phase.MEASURE


def test_unanswered_means_every_users_last_request() -> None:
    bench = Bench()
    bench.send(0, 100)
    bench.send(1, 100)
    # nothing has ended
    assert bench.level.unanswered is None
    bench.end(0, 101, "connect")
    assert bench.level.unanswered is None
    # a proxy answers for a server that is gone
    bench.end(1, 101, "http_error")
    assert bench.level.unanswered is True
    # an answer, even a refusal: not all are without one
    bench.send(0, 102)
    bench.end(0, 102, "rejected")
    assert bench.level.unanswered is None
    bench.send(0, 103)
    bench.end(0, 104, "ok")
    assert bench.level.unanswered is False


def test_abort_ends_at_once_and_once() -> None:
    bench = Bench()
    bench.send(0, 100)
    bench.clock.now = 105
    bench.level.abort("backend_lost")
    bench.level.abort("again")
    assert bench.seen()[-1] == ("level_end", 105)
    assert bench.level.summary().reason == "backend_lost"
    # what is still in flight ends later, without effect
    bench.end(0, 106, "cancelled")
    assert [kind for kind, _ in bench.seen()].count("level_end") == 1


def test_a_level_that_never_started_leaves_no_events() -> None:
    clock, events = FakeClock(), list[RunEvent]()
    level = Level(CELL, 2, LevelLimits(1, 0, 1), clock, events.append)
    assert not level.may_send
    level.abort("interrupted")
    assert events == []
