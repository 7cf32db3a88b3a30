"""The compiled decode step: the same answers, and no second compilation for another batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.errors import OptionError
from servers.contiguous import compiled
from servers.contiguous.cache_static import StaticBatchCache
from servers.contiguous.compiled import CompiledRunner, compiled_runner, warm_up
from servers.contiguous.layout import KvLayout
from tests.contiguous.support import CPU, Bench, Reference, random_prompt, reference
from tests.contiguous.test_greedy import SIZES, staggered

#: traces as inductor's does, and runs what was traced as it is: seconds instead of half a minute
TRACE_ONLY = "aot_eager"


def make(model: Any, layout: KvLayout, backend: str, slots: int = 8) -> CompiledRunner:
    torch._dynamo.reset()
    return CompiledRunner(model, StaticBatchCache(layout, slots, 512), CPU, backend)


@pytest.fixture(scope="module")
def references(model: Any) -> list[Reference]:
    return [reference(model, random_prompt(p, i), n) for i, (p, n) in enumerate(SIZES)]


def serve(model: Any, layout: KvLayout, runner: CompiledRunner) -> list[list[int]]:
    return staggered(Bench(model, layout, "static", slots=8, runner=runner))


def test_the_traced_step_gives_generates_answers(
    model: Any, layout: KvLayout, references: list[Reference]
) -> None:
    runner = make(model, layout, TRACE_ONLY)
    assert serve(model, layout, runner) == [expected.ids for expected in references]


def graphs() -> int:
    """Graphs that torch has traced since its last reset."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_two_compilations_serve_every_batch(model: Any, layout: KvLayout) -> None:
    """One for a single row, one for any number of rows; what was warmed up is not compiled."""
    runner = make(model, layout, TRACE_ONLY)
    before = graphs()
    with torch.inference_mode():
        warm_up(runner, 2)
    assert graphs() == before + 2
    assert runner.cache.used_bytes() == 0
    answers = serve(model, layout, runner)
    assert [len(ids) for ids in answers] == [tokens for _, tokens in SIZES]
    assert graphs() == before + 2


def test_a_step_that_cannot_be_compiled_is_said_at_start(
    model: Any, layout: KvLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*args: Any) -> None:
        raise RuntimeError("no C++ compiler was found\nand more lines")

    monkeypatch.setattr(compiled, "warm_up", no_compiler)
    with pytest.raises(OptionError, match=r"can compile here \(no C\+\+ compiler was found\)"):
        compiled_runner(model, StaticBatchCache(layout, 1, 64), CPU)


@pytest.mark.slow
def test_inductors_step_gives_generates_answers(
    model: Any, layout: KvLayout, references: list[Reference]
) -> None:
    runner = make(model, layout, "inductor")
    assert serve(model, layout, runner) == [expected.ids for expected in references]
