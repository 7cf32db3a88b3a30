"""Is more coming in than goes out? In-flight requests and TTFT over a running level."""

from __future__ import annotations

from collections.abc import Callable

from harness.search.backlog import Backlog


def backlog(in_flight: Callable[[float], float], ttft_s: Callable[[float], float]) -> Backlog:
    """Looked at four times a second from 10 s to 30 s."""
    found = Backlog()
    for place in range(80):
        at_s = 10.0 + place / 4
        found.in_flight(at_s, round(in_flight(at_s - 10.0)))
        found.answered(at_s, ttft_s(at_s - 10.0))
    return found


def rises(t_s: float) -> float:
    return 4 * t_s


def flat(t_s: float) -> float:
    return 5.0


def slow(t_s: float) -> float:
    return t_s


def test_both_must_rise() -> None:
    # quarters of 5 s: means of about 10, 30, 50, 70; growth 60, least max(10, 3 x 10)
    assert backlog(rises, rises).rises(10.0, 30.0, 100)
    assert not backlog(rises, flat).rises(10.0, 30.0, 100)
    assert not backlog(flat, rises).rises(10.0, 30.0, 100)


def test_chance_is_no_growth() -> None:
    # growth 15 is within 3 standard deviations of 100 arrivals: 30
    assert not backlog(slow, slow).rises(10.0, 30.0, 100)


def test_before_each_quarter_has_been_seen_nothing_is_said() -> None:
    assert not Backlog().rises(10.0, 30.0, 0)
    found = Backlog()
    found.in_flight(11.0, 4)
    assert not found.rises(10.0, 30.0, 10)
