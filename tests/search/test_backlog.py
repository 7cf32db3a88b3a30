"""Is more coming in than goes out? In-flight requests and TTFT over a running level."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import numpy as np
import pytest

from harness.search.backlog import Backlog


def backlog(
    in_flight: Callable[[float], float], ttft_s: Callable[[float], float], e2e_s: float = 1.0
) -> Backlog:
    """Looked at four times a second from 10 s to 30 s."""
    found = Backlog()
    for place in range(80):
        at_s = 10.0 + place / 4
        found.in_flight(at_s, round(in_flight(at_s - 10.0)))
        found.answered(at_s, ttft_s(at_s - 10.0), e2e_s)
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


def test_what_is_clear_needs_no_word_of_the_server() -> None:
    # in flight 10, 30, 50, 70: growth 60, twice the chance of 50 that ended is 2 x 21.2 = 42
    clear = backlog(rises, rises)
    assert clear.clear(10.0, 30.0, 50)
    # of 100 it is 2 x 30: not more than that
    assert not clear.clear(10.0, 30.0, 100)
    # none has ended in the first quarter of 5 s: the level still fills up
    assert not backlog(rises, rises, e2e_s=5.5).clear(10.0, 30.0, 50)
    # times to first token that grow by less than half do not say it, nor do flat ones
    assert not backlog(rises, lambda t_s: 10.0 + 0.1 * t_s).clear(10.0, 30.0, 50)
    assert not backlog(rises, flat).clear(10.0, 30.0, 50)
    # 12, 37, 60, 65: from the third quarter on it grows by 5, less than half of 53 / 3
    filled = backlog(lambda t_s: min(5 * t_s, 65.0), rises)
    assert filled.rises(10.0, 30.0, 30)
    assert not filled.clear(10.0, 30.0, 30)
    assert not Backlog().clear(10.0, 30.0, 0)


def called_overloaded(rate_rps: float, seed: int, seats: int = 8) -> float | None:
    """When a queue is called that whose ``seats`` serve one request a second each, in a level of
    120 s looked at each second, with a warm-up of 5 s; None: not at all."""
    draw = random.Random(seed)
    found, free, now_s = Backlog(), [0.0] * seats, 0.0
    requests: list[tuple[float, float, float]] = []
    while now_s < 120.0:
        now_s += draw.expovariate(rate_rps)
        start_s = max(now_s, heapq.heappop(free))
        end_s = start_s + draw.expovariate(1.0)
        heapq.heappush(free, end_s)
        requests.append((now_s, start_s - now_s, end_s))
    due, ttft, end = np.array(requests).T
    for tick in range(1, 120):
        found.in_flight(tick, int(((due <= tick) & (end > tick)).sum()))
        for i in np.flatnonzero((due >= 5.0) & (end > tick - 1) & (end <= tick)):
            found.answered(due[i], ttft[i], end[i] - due[i])
        ended = int(((due >= 5.0) & (end <= tick)).sum())
        if ended >= 20 and found.clear(5.0, float(tick), ended):
            return float(tick)
    return None


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_a_queue_that_keeps_up_is_never_called_overloaded(share: float) -> None:
    assert [called_overloaded(share * 8, seed) for seed in range(20)] == [None] * 20


@pytest.mark.parametrize("times", [1.5, 2.0, 4.0])
def test_a_queue_that_cannot_keep_up_is(times: float) -> None:
    """At 1.5 times its capacity half as many are left as end, which is well over a fifth."""
    said = [called_overloaded(times * 8, seed) for seed in range(20)]
    assert all(time_s is not None and time_s < 90.0 for time_s in said)
