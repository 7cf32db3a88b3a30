"""What each layout sets aside, and how many requests that admits."""

from __future__ import annotations

from typing import Any

import pytest

from harness.kv.engine import EngineOptions
from harness.kv.layouts import NOT_SERVED
from harness.kv.plan_types import PlanOptions
from harness.kv.reserve import next_power_of_two
from tests.kv.models import TINY, planned, tiny


def test_layouts_and_their_waste() -> None:
    # 600 tokens x 1,024 B needed; paged 5 x 128, pow2 1,024, max 2,048 tokens
    result = planned("llama-2-7b", tiny(context=600), **TINY)
    waste = {row.layout: row.waste_bytes for row in result.layouts}
    assert waste == {
        "paged": 40 * 1024,
        "contiguous-max": 1448 * 1024,
        "contiguous-pow2": 424 * 1024,
        "contiguous-exact": 0,
        "dynamic": 0,
    }
    fits = {row.layout: row.requests for row in result.layouts}
    # 127 // 5; 16,384 // 2,048; // 1,024; // 600
    assert fits == {
        "paged": 25,
        "contiguous-max": 8,
        "contiguous-pow2": 16,
        "contiguous-exact": 27,
        "dynamic": 27,
    }
    # dynamic copies one layer's K: 600 x 2 x 32 x 2 B; 16,777,216 // (614,400 + 76,800) = 24
    dynamic = result.layouts[-1]
    assert dynamic.peak_bytes == 600 * 1024 + 600 * 128
    assert dynamic.requests_with_copy == 24
    assert {row.requests_with_copy for row in result.layouts[:-1]} == {None}


def test_the_next_power_of_two_stays_within_the_context() -> None:
    # 600 of at most 1,000 tokens: not 1,024 x 1,024 B; 16,777,216 // 1,024,000 = 16
    engine = EngineOptions(device="cpu", max_model_len=1000)
    layout: Any = {"layout": "contiguous-pow2", "engine": engine}
    result = planned("llama-2-7b", tiny(context=600, **layout), **TINY)
    assert result.reserved_bytes == 1000 * 1024
    assert result.safe_concurrency == 16
    assert "at most max_model_len 1,000" in " ".join(result.derivation)
    # a row beyond the context: nobody runs, and what it needs is still shown
    beyond = result.table[-1]
    assert (beyond.requests, beyond.limit) == (0, "max_model_len")
    assert beyond.reserved_bytes == beyond.needed_bytes == 8192 * 1024


@pytest.mark.parametrize(
    ("layout", "expected"), [("contiguous-max", 8), ("contiguous-exact", 25), ("dynamic", 25)]
)
def test_safe_concurrency_of_other_layouts(layout: Any, expected: int) -> None:
    result = planned(
        "llama-2-7b", tiny(layout=layout, prompt_tokens=512, output_tokens=128), **TINY
    )
    assert result.safe_concurrency == expected
    assert result.reserved_bytes == next(
        row.reserved_bytes for row in result.layouts if row.layout == layout
    )


@pytest.mark.parametrize(("prompt", "output"), [(512, 128), (1, 1), (2000, 48), (100, 27)])
def test_dynamic_counts_what_the_contiguous_server_admits(prompt: int, output: int) -> None:
    from servers.contiguous.admission import DynamicPolicy, Promise

    options = tiny(layout="dynamic", prompt_tokens=prompt, output_tokens=output)
    result = planned("llama-2-7b", options, **TINY)
    policy = DynamicPolicy(budget_bytes=16 * 2**20, bytes_per_token=1024, max_num_seqs=10**6)
    running: list[Promise] = []
    while policy.blocker(running, Promise(prompt, output)) is None:
        running.append(Promise(prompt, output))
    assert result.safe_concurrency == len(running) == 16 * 1024 // (prompt + output)
    assert result.reserved_bytes == policy.reserved_bytes(running[:1])
    # the copy is one layer's K of all rows: an eighth more of 4 layers' K and V
    peak = (prompt + output) * (1024 + 128)
    assert result.peak_bytes == peak
    assert result.safe_with_copy == 16 * 2**20 // peak
    paged = planned("llama-2-7b", tiny(context=640), **TINY)
    assert paged.safe_with_copy is None
    assert paged.peak_bytes == paged.reserved_bytes


@pytest.mark.parametrize(("prompt", "output"), [(512, 128), (1, 1), (2000, 48), (1000, 25)])
@pytest.mark.parametrize("reserve", ["exact", "pow2"])
def test_regions_count_what_the_contiguous_server_admits(
    reserve: Any, prompt: int, output: int
) -> None:
    """16,384 tokens, and regions of the tokens themselves or of the next power of two."""
    from servers.contiguous.admission import Admission, Promise
    from servers.contiguous.reserving import ArenaPolicy

    options = tiny(layout=f"contiguous-{reserve}", prompt_tokens=prompt, output_tokens=output)
    result = planned("llama-2-7b", options, **TINY)
    policy = ArenaPolicy(16 * 1024, 1024, 10**6, 2048, reserve)
    queue = Admission[int](policy, 10**6)
    for number in range(30):
        queue.enqueue(number, Promise(prompt, output))
    while queue.admit() is not None:
        pass
    region = prompt + output if reserve == "exact" else 1 << (prompt + output - 1).bit_length()
    assert result.safe_concurrency == 16 * 1024 // region
    assert queue.running == min(result.safe_concurrency, 30)
    assert result.reserved_bytes == queue.reserved_bytes // queue.running == region * 1024


def test_powers_of_two() -> None:
    assert [next_power_of_two(n) for n in (1, 2, 3, 128, 129)] == [1, 2, 4, 128, 256]


def test_models_that_the_contiguous_server_refuses_are_named() -> None:
    def said(name: str, layout: Any) -> bool:
        plan = planned(name, PlanOptions(layout=layout, kv_memory_bytes=2**33))
        return NOT_SERVED in plan.warnings

    assert said("gemma-3-4b", "dynamic")
    assert said("mamba-2.8b", "contiguous-max")
    assert said("deepseek-v3", "dynamic")
    assert not said("gemma-3-4b", "paged")
    assert not said("llama-2-7b", "dynamic")
    beside = PlanOptions(all_layouts=True, kv_memory_bytes=2**33)
    assert NOT_SERVED in planned("deepseek-v3", beside).warnings
