"""TTFT and ITL are what the server knows them to be: errors as parts of the paced times."""

from __future__ import annotations

import importlib.util
import os

import pytest

from tests.benchmarks.ceiling import measure as climb
from tests.benchmarks.fidelity import measure
from tests.benchmarks.paced import ITL_S, TTFT_S, Load, as_row, table

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]


@pytest.mark.parametrize("scenario", [False, True])
def test_a_thousand_streams(scenario: bool) -> None:
    row = measure([Load(1000)], scenario=scenario, vllm_at=None)[-1]
    shown, errors = table([as_row(client=row.client, errors=row.errors)]), row.errors
    assert (errors.failed, errors.lost, errors.invented) == (0, 0, 0), shown
    # 0.2 ms and 2 ms of 50 ms; 0.5 ms of 20 ms
    assert errors.ttft_p50_ms <= TTFT_S * 1e3 / 250, shown
    assert errors.ttft_p99_ms <= TTFT_S * 1e3 / 25, shown
    assert errors.itl_p99_ms <= ITL_S * 1e3 / 40, shown


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM's client")
def test_a_hundred_times_closer_than_vllms_client() -> None:
    ours, theirs = measure([Load(500)], scenario=False, vllm_at=500)
    shown = table([as_row(client=r.client, errors=r.errors) for r in (ours, theirs)])
    assert theirs.errors.ttft_p50_ms >= 100 * ours.errors.ttft_p50_ms, shown


def test_the_ceiling_is_above_25_000_tokens_per_second() -> None:
    (step,) = climb(500, 1, 500)
    # the rate that was asked for, but for the ramps at both ends
    assert step.events_per_s > 0.5 * 500 / ITL_S, step
    assert step.holds, step
