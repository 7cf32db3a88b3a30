"""Budgets, weights, length distributions and units: what a pool comes from."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import OptionError, UsageError
from harness.kv.budget import pool_from_device
from harness.kv.engine import EngineOptions
from harness.kv.lengths import (
    MIN_TRIALS,
    TRIALS,
    is_simulated,
    parse_lengths,
    safe_requests,
    trials,
)
from harness.kv.plan_types import PlanOptions
from tests.kv.models import GIB, planned


def test_c82_what_lies_outside_weights_and_kv() -> None:
    # 24 GiB x 0.92 - 12 GiB - 2 GiB = 8.08 GiB
    budget = pool_from_device(
        device_bytes=24 * GIB,
        utilization=0.92,
        weights_bytes=12 * GIB,
        overhead_bytes=2 * GIB,
        overhead_steps=(),
        tp=1,
    )
    assert budget.pool_bytes == int(22.08 * GIB) - 14 * GIB
    halves = pool_from_device(
        device_bytes=24 * GIB,
        utilization=0.92,
        weights_bytes=12 * GIB,
        overhead_bytes=2 * GIB,
        overhead_steps=(),
        tp=2,
    )
    assert halves.pool_bytes == budget.pool_bytes + 6 * GIB


def test_a_plan_from_vram() -> None:
    # Llama-2-7B: 6,738,149,376 parameters x 2 B = 12.55 GiB; 24 GiB x 0.92 - 12.55 - 2 GiB
    options = PlanOptions(vram_bytes=24 * GIB, overhead_bytes=2 * GIB, context=4096)
    result = planned("llama-2-7b", options)
    weights = 6_738_149_376 * 2
    assert result.parameters == 6_738_149_376
    pool = int(24 * GIB * 92 // 100) - weights - 2 * GIB
    assert result.pool_bytes == pool
    assert result.num_blocks == pool // 8_388_608
    assert result.safe_concurrency == (pool // 8_388_608 - 1) // 256
    estimated = planned("llama-2-7b", PlanOptions(vram_bytes=24 * GIB))
    assert any("overhead (estimate)" in step for step in estimated.derivation)


def test_weights_that_do_not_fit() -> None:
    # 16 GiB x 0.92 = 14.72 GiB; 20 GiB of weights and 1 GiB: 6.28 GiB short
    options = PlanOptions(vram_bytes=16 * GIB, weights_bytes=20 * GIB, overhead_bytes=GIB)
    with pytest.raises(UsageError, match=r"--vram: does not fit: needs [\d,]+ B = 6\.28 GiB more"):
        planned("llama-2-7b", options)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama-2-7b", 6.74, None),
        ("llama-3.1-405b", 405.9, None),
        ("qwen2.5-72b", 72.7, None),
        ("mixtral-8x7b", 46.7, 12.6),
        ("deepseek-v3", 671.0, 36.6),
        ("qwen3-30b-a3b", 30.5, 2.7),
        ("gpt-oss-20b", 20.9, None),
        ("jamba-v0.1", 51.5, None),
        ("dbrx", 131.6, None),
        ("gpt2", 0.124, None),
        ("falcon-7b", 6.92, None),
        ("whisper-large-v3-turbo", 0.8, None),
        ("nemotron-h-8b", 8.0, None),
        ("llama-4-scout", 107.8, None),
    ],
)
def test_parameters_against_published_sizes(
    name: str, billions: float, active: float | None
) -> None:
    result = planned(name)
    assert result.parameters is not None
    assert result.parameters / 1e9 == pytest.approx(billions, rel=0.02)
    if active is not None:
        # the matrices' FLOPs of one token are twice the active parameters
        row = result.prefill[0]
        assert row.matrices / row.tokens / 2e9 == pytest.approx(active, rel=0.03)


def test_quantised_weights_are_smaller() -> None:
    options = PlanOptions(vram_bytes=80 * GIB, overhead_bytes=GIB)
    plain = planned("llama-2-7b", options)
    four = planned("llama-2-7b", options, quantization_config={"bits": 4, "quant_method": "gptq"})
    assert plain.pool_bytes is not None
    assert four.pool_bytes is not None
    # 16 bit less 4.15 bit of 6.74 G parameters
    assert four.pool_bytes - plain.pool_bytes == pytest.approx(
        6_738_149_376 * (16 - 4.15) / 8, abs=2
    )


def test_lengths_are_safe_at_the_99th_percentile() -> None:
    # half of the requests take 1 unit, half 3: mean 2, so 1,000 units hold 500 on average;
    # the sum of n has deviation sqrt(n): 1,000 = 2 n + 2.326 sqrt(n) -> n = 475
    fit = safe_requests([1, 3], 1000, seed=7)
    assert fit == pytest.approx(475, abs=4)
    assert safe_requests([1, 3], 1000, seed=7) == fit
    # 1,000,000 draws / 499 requests a trial = 2,004; / 5,000 = 200, the least
    assert trials([1, 3], 997) == TRIALS
    assert trials([1], 4_999) == MIN_TRIALS == 200
    # equal sizes leave no chance
    assert safe_requests([5], 127) == 25
    assert safe_requests([5], 4) == 0


def test_lengths_of_a_huge_pool_need_no_draws() -> None:
    # the sum of n counts as normal: n = 5,000,000 - 2.326 sqrt(n) / 2 = 4,997,400
    assert not is_simulated([1, 3], 10_000_000)
    assert safe_requests([1, 3], 10_000_000) == pytest.approx(4_997_400, abs=2)
    # the scheduler's limit ends the draws
    assert safe_requests([1, 3], 10_000_000, most=256) == 256
    assert safe_requests([1, 3], 1000, seed=7, most=470) == 470
    assert safe_requests([1, 3], 1000, seed=7, most=490) == safe_requests([1, 3], 1000, seed=7)


def test_lengths_at_the_edge_between_draws_and_normal_agree() -> None:
    # 10,000 units of mean 2: 5,000 - 2.326 sqrt(5,000) / 2 = 4,918 either way
    assert is_simulated([1, 3], 9_990)
    assert not is_simulated([1, 3], 10_010)
    drawn, normal = safe_requests([1, 3], 9_990), safe_requests([1, 3], 10_010)
    assert drawn + 10 == pytest.approx(normal, abs=25)


def test_the_working_of_lengths_says_how() -> None:
    def said(**given: Any) -> str:
        options = PlanOptions(lengths=((512, 128), (100, 20)), **given)
        return " ".join(planned("gpt2", options).derivation)

    assert "their sum counts as normal" in said(kv_memory_bytes=2**40)
    limited = said(kv_memory_bytes=2**40, engine=EngineOptions(max_num_seqs=256))
    assert "up to max_num_seqs 256, whose sum" in limited
    assert "draws (seed 0)" in limited


@pytest.mark.parametrize("bits", [-16, 0, 65, 10**400])
def test_bits_that_no_weight_has_are_refused(bits: int) -> None:
    options = PlanOptions(vram_bytes=80 * GIB)
    with pytest.raises(UsageError, match=r"quantization_config: bits is .* expected 1 to 64") as it:
        planned("llama-2-7b", options, quantization_config={"bits": bits})
    assert len(str(it.value)) < 150


def test_lengths_files() -> None:
    assert parse_lengths("# prompt output\n512 128\n\n 10 0 # short\n", "f") == (
        (512, 128),
        (10, 0),
    )
    for text in ("", "512", "512,128", "0 5", "a b", "1 2 3", "00 5", "9" * 5000 + " 1"):
        with pytest.raises(OptionError, match="--lengths") as caught:
            parse_lengths(text, "f")
        assert len(str(caught.value)) < 200
