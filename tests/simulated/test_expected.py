"""The knees that follow from a model, against arithmetic by hand."""

from __future__ import annotations

import pytest

from servers.simulated.expected import ClosedLoop, ExpectedKnee, expected_knee, holds, run_level
from servers.simulated.model import EngineModel, StepCost
from tests.simulated.configurations import COUNT, LEVELS, LOAD, configuration, decisive

LOOP = ClosedLoop(96, 32, ttft_limit_s=0.1, tpot_limit_s=0.02)
NONE = ExpectedKnee(None, None)


def test_a_pool_of_fifty_blocks_holds_six() -> None:
    """96 + 32 - 1 = 127 tokens are 8 blocks of 16, the prompt alone is 6: 50 / 8 = 6 surely
    run, 50 / 6 = 8 prompts fit, a ninth does not."""
    model = EngineModel("paged", StepCost(), num_blocks=51)
    assert holds(model, LOOP) == (6, 9)
    expected = expected_knee(model, LOOP, (4, 6, 9, 16))
    assert expected.memory == expected.capacity == ExpectedKnee(9, "kv_memory")
    assert expected.levels[1].kv_share == 0.0


def test_slots() -> None:
    """5 slots of 256 tokens x 1,024 B, and a rest that pays for none."""
    model = EngineModel(
        "contiguous", StepCost(), max_model_len=256, kv_budget_bytes=5 * 2**18 + 1000
    )
    assert holds(model, LOOP) == (5, 6)
    assert expected_knee(model, LOOP, (5, 6)).memory == ExpectedKnee(6, "kv_memory")


def test_seats() -> None:
    expected = expected_knee(EngineModel("paged", StepCost(), max_num_seqs=6), LOOP, (4, 8))
    assert expected.capacity == ExpectedKnee(8, "scheduler_limit")
    assert expected.memory == NONE


def test_steps_that_take_too_long() -> None:
    """1 ms + 2.2 ms per request: 18.6 ms at 8, 36.2 ms at 16; the limit is 20 ms."""
    model = EngineModel("paged", StepCost(base_s=0.001, per_running_s=0.0022))
    expected = expected_knee(model, LOOP, (4, 8, 16))
    assert expected.latency == ExpectedKnee(16, "compute")
    assert expected.capacity == expected.memory == NONE
    # two prefills fall into an answer of 31 gaps at most, 96 x 16 x 10 us = 15 ms each
    assert 0.0362 <= expected.levels[2].tpot_worst_s <= 0.0362 + 2 * 0.0154 / 31


def test_one_user_by_hand() -> None:
    """TTFT: 4 ms + 0.2 + 96 x 10 us = 5.16 ms; each further token 4.2 ms."""
    truth = run_level(EngineModel("paged", StepCost()), LOOP, 1)
    assert truth.ttft_worst_s == pytest.approx(0.00516)
    assert truth.tpot_worst_s == pytest.approx(0.0042)
    assert (truth.slo_share, truth.cause) == (1.0, None)


@pytest.mark.parametrize("seed", range(COUNT))
def test_each_configuration_has_its_one_limit_far_from_every_threshold(seed: int) -> None:
    """By two ways of counting: the run of the core, and division of the pool by a request."""
    item = configuration(seed)
    assert configuration(seed) == item
    assert all(decisive(truth) for truth in item.expected.levels)
    cause = {"memory": "kv_memory", "scheduler": "scheduler_limit", "compute": "compute"}[
        item.limit
    ]
    assert item.expected.latency.cause == cause
    surely, surely_not = holds(item.model, LOAD)
    first_bad = item.expected.capacity.first_bad
    if item.limit == "compute":
        assert first_bad is None
        assert surely >= LEVELS[-1]
    else:
        assert item.expected.capacity.cause == cause
        assert first_bad is not None
        assert first_bad >= surely_not
        assert all(level <= surely for level in LEVELS if level < first_bad)
