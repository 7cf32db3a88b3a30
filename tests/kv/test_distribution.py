"""Requests of random lengths: what is safe, by layout."""

from __future__ import annotations

import random
from typing import Any

import pytest

from harness.kv.engine import EngineOptions
from harness.kv.lengths import safe_padded
from harness.kv.plan_types import PlanOptions
from tests.kv.models import GIB, TINY, planned


def test_a_padded_batch_costs_its_longest() -> None:
    # nine in ten take 1 unit, one takes 10. Of n = 100 nearly all have a 10, so 1,000 units are
    # needed: 0.9^100 is no 99 %. F(B / n) = 1 while n <= B / 10
    sizes = [1] * 9 + [10]
    assert safe_padded(sizes, 1000) == 100
    assert safe_padded(sizes, 1009) == 100
    assert safe_padded(sizes, 9) == 0
    assert safe_padded(sizes, 10) == 1
    assert safe_padded(sizes, 1000, most=7) == 7
    # one in 1,000 is long: up to n = 10 none is drawn in 99 % (0.999^10 = 0.990), not for 11
    rare = [1] * 999 + [100]
    assert safe_padded(rare, 99) == 10
    assert safe_padded(rare, 10**6) == 10**4
    assert safe_padded([5], 127) == 25


LENGTHS = ((512, 128), (100, 28), (40, 10), (1000, 200))


def test_dynamic_lengths_are_safe_by_the_servers_own_rule() -> None:
    from servers.contiguous.admission import DynamicPolicy, Promise

    options = PlanOptions(
        engine=EngineOptions(device="cpu", max_model_len=2048),
        kv_memory_bytes=16 * 2**20,
        layout="dynamic",
        lengths=LENGTHS,
    )
    plan = planned("llama-2-7b", options, **TINY)
    # the longest is a quarter of all: 16,384 tokens / 1,200 = 13 whatever is drawn
    assert plan.safe_concurrency == 13
    # with the copy of an eighth: 16,777,216 // (1,200 x 1,152)
    assert plan.safe_with_copy == 12
    policy = DynamicPolicy(budget_bytes=16 * 2**20, bytes_per_token=1024, max_num_seqs=10**6)
    generator = random.Random(1)
    fitting = 0
    for _ in range(500):
        running: list[Promise] = []
        for promise in generator.choices([Promise(*pair) for pair in LENGTHS], k=13):
            if policy.blocker(running, promise) is None:
                running.append(promise)
        fitting += len(running) == 13
    assert fitting == 500
    text = " ".join(plan.derivation)
    assert "n requests take n x the longest" in text
    assert "safe with the copy, likewise = 12" in text


@pytest.mark.parametrize("layout", ["contiguous-max", "contiguous-pow2", "contiguous-exact"])
def test_lengths_of_other_layouts(layout: Any) -> None:
    engine = EngineOptions(device="cpu", max_model_len=2048)
    options = PlanOptions(
        engine=engine, kv_memory_bytes=16 * 2**20, layout=layout, lengths=LENGTHS, seed=3
    )
    plan = planned("llama-2-7b", options, **TINY)
    assert plan.safe_concurrency is not None
    assert plan.safe_with_copy is None
    if layout == "contiguous-max":
        # all alike: 16,384 / 2,048
        assert plan.safe_concurrency == 8
        assert any("all alike, none is simulated" in step for step in plan.derivation)
    else:
        # fewer than the mean promises, more than the longest allows: 640, 128, 50 and 1,200
        # tokens, or 1,024, 128, 64 and 2,048
        mean, longest = (504.5, 1200) if layout == "contiguous-exact" else (816, 2048)
        assert 16_384 / longest < plan.safe_concurrency < 16_384 / mean


def test_max_num_seqs_caps_lengths() -> None:
    for layout in ("paged", "contiguous-max", "contiguous-exact", "dynamic"):
        asked: Any = {"layout": layout, "lengths": LENGTHS, "kv_memory_bytes": 8 * GIB}
        engine = EngineOptions(device="cpu", max_model_len=2048, max_num_seqs=5)
        plan = planned("llama-2-7b", PlanOptions(engine=engine, **asked), **TINY)
        assert plan.safe_concurrency == 5
        assert {row.requests for row in plan.layouts} == {5}
