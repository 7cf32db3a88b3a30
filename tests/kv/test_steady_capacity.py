"""Requests out of step: the computed share of time against exact sums, and against a simulation."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from harness.kv.occupancy import Lengths, Pool, simulate
from harness.kv.steady_capacity import (
    OVERFLOW,
    Demand,
    growing_demand,
    overflow_share,
    reserved_demand,
    steady_padded,
    steady_requests,
    steady_text,
)


def blocks_of(size: int) -> Callable[[int], int]:
    return lambda tokens: -(-tokens // size)


def exact(demand: Demand, n: int, budget: int) -> float:
    """The tail of the n-fold convolution."""
    pmf = np.zeros(demand.sizes[-1] + 1)
    pmf[list(demand.sizes)] = demand.shares
    total = np.ones(1)
    for _ in range(n):
        total = np.convolve(total, pmf)
    return float(total[budget + 1 :].sum())


def test_a_request_needs_its_blocks_step_by_step() -> None:
    # 30 + 5 tokens in blocks of 16: 30, 31, 32 tokens take 2 blocks, 33 and 34 take 3
    demand = growing_demand([(30, 5)], blocks_of(16), 16)
    assert demand == Demand((2, 3), (3 / 5, 2 / 5))
    assert demand.mean == pytest.approx(2.4)
    assert demand.variance == pytest.approx(0.24)


def test_the_last_token_is_never_stored() -> None:
    # 16 + 1: the only step stores the prompt, which fills one block
    assert growing_demand([(16, 1)], blocks_of(16), 16).sizes == (1,)
    # 16 + 2: the second step stores 17 tokens
    assert growing_demand([(16, 2)], blocks_of(16), 16) == Demand((1, 2), (0.5, 0.5))


def test_long_answers_are_in_flight_longer() -> None:
    # half of the requests sent have 10 tokens, half 30: of the time in flight 1/4 and 3/4
    demand = reserved_demand([(10, 10), (10, 30)], lambda tokens: tokens)
    assert demand == Demand((20, 40), (0.25, 0.75))


def test_no_answer_still_takes_a_step() -> None:
    assert growing_demand([(5, 0)], blocks_of(16), 16) == Demand((1,), (1.0,))


@pytest.mark.parametrize(
    ("pair", "size", "n"),
    [((512, 64), 16, 18), ((512, 128), 16, 60), ((100, 300), 16, 12), ((40, 1000), 128, 9)],
)
def test_the_share_of_time_is_that_of_the_exact_sum(
    pair: tuple[int, int], size: int, n: int
) -> None:
    demand = growing_demand([pair], blocks_of(size), size)
    for sigmas in (1.0, 2.0, 2.5, 3.0):
        budget = round(n * demand.mean + sigmas * (n * demand.variance) ** 0.5)
        truth = exact(demand, n, budget)
        if 0 < truth < 1:
            assert overflow_share(demand, n, budget) == pytest.approx(truth, rel=0.05)


def test_a_skewed_demand_too() -> None:
    # one in twenty needs forty times as much: 10 such requests exceed 100 when 3 are large,
    # or 2 large and more than 20 of the rest (never: 2 x 40 + 8 = 88)
    demand = Demand((1, 40), (0.95, 0.05))
    truth = exact(demand, 10, 100)
    p, q = 0.05, 0.95
    by_hand = 1 - sum(c * p**k * q ** (10 - k) for k, c in ((0, 1), (1, 10), (2, 45)))
    assert truth == pytest.approx(by_hand)
    assert overflow_share(demand, 10, 100) == pytest.approx(truth, rel=0.1)


def test_the_ends_are_exact() -> None:
    demand = Demand((4, 5), (0.75, 0.25))
    assert overflow_share(demand, 10, 50) == 0.0
    assert overflow_share(demand, 10, 39) == 1.0
    # all ten at their most
    assert overflow_share(demand, 10, 49) == pytest.approx(0.25**10)
    # at least one at its most: 1 - 0.75^10
    assert overflow_share(demand, 10, 40) == pytest.approx(1 - 0.75**10, rel=0.05)
    assert overflow_share(demand, 0, 0) == 0.0


def test_steady_is_the_last_that_fits() -> None:
    # 512 + 512 tokens in blocks of 16: 32 to 64 blocks, 48.47 on average; 4,817 usable
    demand = growing_demand([(512, 512)], blocks_of(16), 16)
    found = steady_requests(demand, 4817)
    assert exact(demand, found.requests, 4817) <= OVERFLOW < exact(demand, found.requests + 1, 4817)
    # worst case: 4,817 / 64 = 75; on average 4,817 / 48.47 = 99
    assert 75 < found.requests < 99
    assert found.overflow <= OVERFLOW < found.overflow_of_next


@pytest.mark.parametrize(("budget", "fit"), [(0, 0), (4, 0), (5, 1), (9, 1), (25, 5)])
def test_requests_that_are_all_alike(budget: int, fit: int) -> None:
    found = steady_requests(Demand((5,), (1.0,)), budget)
    assert found.requests == fit


def test_a_limit_of_the_scheduler() -> None:
    assert steady_requests(Demand((5,), (1.0,)), 100, most=7).requests == 7
    assert steady_padded(Demand((5,), (1.0,)), 100, most=7).requests == 7


def test_requests_that_need_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        steady_requests(Demand((0,), (1.0,)), 10)


def test_a_padded_batch() -> None:
    # 10 in 98 % of the time, 20 in 2 %: 5 x 20 = 100 always fits; 6 x 20 does not, and one of
    # six is long in 1 - 0.98^6 = 11 %; ten short ones fit, which is as likely as 0.98^10
    demand = Demand((10, 20), (0.98, 0.02))
    found = steady_padded(demand, 100)
    assert found.requests == 5
    assert found.overflow == 0.0
    assert found.overflow_of_next == pytest.approx(1 - 0.98**6)


def test_the_working_shows_its_numbers() -> None:
    demand = growing_demand([(30, 5)], blocks_of(16), 16)
    first, second = steady_text(steady_requests(demand, 30), 30, "blocks")
    assert "2 to 3 blocks" in first
    assert "30 / 2.40 = 12.5 requests on average" in first
    assert "more than 30 in" in second


def drawn(pair: tuple[int, int], size: int, n: int, budget: int, seed: int) -> float:
    """Share of 4,000 draws in which n users at random moments need more."""
    prompt, output = pair
    generator = random.Random(seed)
    over = 0
    for _ in range(4000):
        moments = [generator.randrange(output) for _ in range(n)]
        over += sum(-(-(prompt + k) // size) for k in moments) > budget
    return over / 4000


def test_the_share_of_time_is_that_of_users_drawn_one_by_one() -> None:
    demand = growing_demand([(200, 200)], blocks_of(16), 16)
    budget = round(20 * demand.mean + 1.3 * (20 * demand.variance) ** 0.5)
    # 4,000 draws of a share near 0.1 scatter by 0.005
    share = drawn((200, 200), 16, 20, budget, seed=1)
    assert overflow_share(demand, 20, budget) == pytest.approx(share, abs=0.02)


def test_the_engine_walked_step_by_step_holds_what_is_predicted() -> None:
    """Many lengths in a closed loop: the walk of ``occupancy`` preempts beyond it, not below."""
    generator = random.Random(3)
    pairs = [(generator.randrange(50, 400), generator.randrange(20, 400)) for _ in range(300)]
    pool = Pool(tokens=16 * 601, max_model_len=2048, block_size=16)
    demand = growing_demand(pairs, blocks_of(16), 16)
    n = steady_requests(demand, pool.usable_blocks).requests
    requests = [Lengths(*pair) for pair in pairs]
    below = simulate("paged", requests, pool, users=round(n * 0.9))
    beyond = simulate("paged", requests, pool, users=round(n * 1.3))
    assert below is not None
    assert beyond is not None
    assert below.preemptions == 0
    assert below.held == pytest.approx(round(n * 0.9), rel=0.01)
    assert beyond.held < round(n * 1.3) * 0.97
