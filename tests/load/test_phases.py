"""The phases of a level over several processes, and the bookkeeping of late orders."""

from __future__ import annotations

from harness.load.level_users import LevelUsers
from harness.load.phases import LevelLimits, LevelPhases, Order, Phase, Tally, Totals
from harness.records import RunEvent
from tests.load.test_level import CELL, FakeClock


class Bench:
    """Two processes with two users and one, whose orders arrive when the test says."""

    def __init__(self, requests: int = 4, least_s: float = 1.0) -> None:
        self.clock = FakeClock()
        self.events: list[RunEvent] = []
        self.orders: list[Order] = []
        limits = LevelLimits(requests, least_s, 60.0)
        self.phases = LevelPhases(
            CELL, 3, limits, self.clock, self.events.append, self.orders.append
        )
        self.crews = [LevelUsers(2, 0), LevelUsers(1, 2)]

    def deliver(self, *crews: int) -> None:
        """The last order arrives."""
        for crew in crews:
            self.crews[crew].obey(self.orders[-1])

    def look(self, at: float) -> Phase:
        """The master looks at the sum of all."""
        self.clock.now = at
        self.phases.heard(Totals([crew.tally() for crew in self.crews]), at)
        return self.phases.phase

    def request(self, user: int, sent_s: float, end_s: float | None = None) -> None:
        crew = self.crews[user // 2]
        crew.begun(user)
        crew.sent(user, sent_s)
        if end_s is not None:
            crew.ended(user, end_s)

    def end(self, user: int, at: float) -> None:
        self.crews[user // 2].ended(user, at)


def warm() -> Bench:
    """Measuring since 102, when the last first request ended; nobody has heard of it."""
    bench = Bench()
    bench.phases.start()
    bench.deliver(0, 1)
    bench.request(0, 100.0, 101.0)
    bench.request(1, 100.0, 101.5)
    assert bench.look(101.6) is Phase.WARMUP
    bench.request(2, 100.0, 102.0)
    bench.request(0, 101.0)
    bench.request(1, 102.01)
    bench.request(2, 102.02)
    assert bench.look(102.05) is Phase.MEASURE
    return bench


def test_the_window_opens_with_the_last_first_request_of_all() -> None:
    bench = warm()
    assert bench.orders[-1] == Order(phase=Phase.MEASURE, open_s=102.0)
    # what was sent between the opening and the news of it counts, what was sent before not
    bench.deliver(0, 1)
    assert [crew.counted_sent for crew in bench.crews] == [1, 1]
    assert [crew.counted_in_flight for crew in bench.crews] == [1, 1]


def test_the_window_closes_by_the_sum_and_ends_when_every_process_knows() -> None:
    bench = warm()
    bench.deliver(0, 1)
    bench.end(0, 102.5)
    bench.request(0, 102.5)
    bench.end(2, 102.9)
    # 2 + 1 counted so far, and the window is old enough from 103 on
    assert bench.look(103.1) is Phase.MEASURE
    bench.request(2, 103.2)
    assert bench.look(103.3) is Phase.FOLLOW
    assert bench.events[-1].kind == "window_close"
    assert bench.orders[-1] == Order(phase=Phase.FOLLOW, open_s=102.0, close_s=103.3)
    # the first process hears late: its user 1 goes on, and what it sends now is outside
    bench.deliver(1)
    bench.end(0, 103.4)
    bench.end(1, 103.4)
    bench.request(1, 103.4)
    bench.end(2, 103.5)
    assert bench.look(103.55) is Phase.FOLLOW
    bench.deliver(0)
    assert bench.crews[0].counted_in_flight == 0
    # all counted requests have ended, and all know that no other counts
    assert bench.look(103.6) is Phase.DRAIN
    bench.end(1, 104.0)
    # the second process may still be sending: it has not heard
    bench.deliver(0)
    assert bench.look(104.1) is Phase.DRAIN
    bench.deliver(1)
    assert bench.look(104.2) is Phase.DONE
    assert [event.kind for event in bench.events] == ["level_start", "window_close", "level_end"]
    summary = bench.phases.summary(7, 0)
    assert abs((summary.window_s or 0) - 1.3) < 1e-9


def test_a_request_sent_before_the_close_but_told_later_is_followed() -> None:
    bench = warm()
    bench.deliver(0, 1)
    for number in range(3):
        bench.end(0, 102.2 + 0.1 * number)
        bench.request(0, 102.2 + 0.1 * number)
    told = Totals([crew.tally() for crew in bench.crews])
    # user 2 ends and sends another inside the window, after its process told its tally
    bench.end(2, 103.2)
    bench.request(2, 103.2)
    bench.phases.heard(told, 103.3)
    assert bench.phases.phase is Phase.FOLLOW
    bench.deliver(0, 1)
    bench.end(0, 103.4)
    bench.end(1, 103.4)
    assert bench.crews[1].counted_in_flight == 1
    assert bench.look(103.5) is Phase.FOLLOW
    bench.end(2, 103.6)
    assert bench.look(103.7) is Phase.DRAIN


def test_a_process_without_users_holds_nothing_up() -> None:
    empty = LevelUsers(0, 3).tally()
    full = LevelUsers(1, 0)
    full.obey(Order(phase=Phase.WARMUP))
    full.begun(0)
    full.sent(0, 1.0)
    assert Totals([empty, full.tally()]).warm_s is None
    full.ended(0, 2.0)
    assert Totals([empty, full.tally()]).warm_s == 2.0
    # a process that was not heard of may have users
    assert Totals([None, full.tally()]).warm_s is None
    assert not Totals([None, full.tally()]).acts_on(Phase.WARMUP)


def test_totals_are_sums() -> None:
    tallies = [
        Tally(
            phase=Phase.MEASURE,
            users=2,
            warm_s=5.0 + scale,
            counted_sent=3 * scale,
            counted_in_flight=scale,
            in_flight=2 * scale,
            unanswered=scale,
            n_ok=10 * scale,
            n_failed=scale,
        )
        for scale in (1, 10)
    ]
    total = Totals(tallies)
    found = (total.counted_sent, total.counted_in_flight, total.in_flight, total.unanswered)
    assert found == (33, 11, 22, 11)
    assert (total.n_ok, total.n_failed, total.warm_s) == (110, 11, 15.0)
