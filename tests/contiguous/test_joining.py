"""A request that cannot join for want of memory fails alone, whatever was done of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from servers.contiguous import cache_dynamic, cache_quantized, cache_sliding
from servers.contiguous.layout import KvLayout
from tests.contiguous.modes import mode_bench
from tests.contiguous.support import Bench, random_prompt, reference

#: wide enough that no answer depends on it
WINDOW = 400
#: calls of what joining allocates with, of which the last one finds no memory: in ``dynamic``
#: and ``sliding`` the keys and values of layer 0 are joined already, and the keys of layer 1
ALLOCATORS = {
    "dynamic": (cache_dynamic, "stack"),
    "sliding": (cache_sliding, "stack"),
    "quantized": (cache_quantized, "quantized_layer"),
}


def bench_of(kind: str, model: Any, layout: KvLayout) -> Bench:
    if kind == "dynamic":
        return Bench(model, layout, kind)
    return mode_bench(model, kind, sliding_window=WINDOW if kind == "sliding" else None)


@pytest.mark.parametrize("kind", ["dynamic", "sliding", "quantized"])
@pytest.mark.parametrize("joining", [9, 60], ids=["shorter", "longer"])
def test_out_of_memory_in_join_ends_the_joining_request_alone(
    kind: str, joining: int, model: Any, layout: KvLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same two requests without a third one beside them."""
    prompts = [random_prompt(30, 0), random_prompt(12, 1)]
    alone = bench_of(kind, model, layout)
    wanted = [alone.submit(prompt, 12)[1] for prompt in prompts]
    alone.run()

    bench = bench_of(kind, model, layout)
    got = [bench.submit(prompt, 12)[1] for prompt in prompts]
    bench.steps(3)
    before = bench.engine.snapshot()
    _, failed = bench.submit(random_prompt(joining, 2), 12)
    module, name = ALLOCATORS[kind]
    plain, calls = getattr(module, name), 0

    def scarce(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return plain(*args)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, scarce)
        bench.steps(1)
    assert failed.error == (
        "joining the batch failed: OutOfMemoryError: Tried to allocate 2.00 GiB."
    )
    now = bench.engine.snapshot()
    assert now.running == 2
    # one more token each than before, and nothing of the third
    assert now.kv_tokens_held == before.kv_tokens_held + 2
    assert now.kv_reserved_bytes == before.kv_reserved_bytes
    bench.run()
    assert [out.error for out in got] == [None, None]
    assert [out.ids for out in got] == [out.ids for out in wanted]
    if kind != "quantized":
        assert got[0].ids == reference(model, prompts[0], 12).ids
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)


def test_the_next_one_joins_after_it(
    model: Any, layout: KvLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of("dynamic", model, layout)
    _, first = bench.submit(random_prompt(30, 0), 12)
    bench.steps(1)

    def none(*_: Any) -> Any:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patched:
        patched.setattr(cache_dynamic, "stack", none)
        bench.submit(random_prompt(60, 1), 12)
        bench.steps(1)
    late = random_prompt(45, 2)
    _, out = bench.submit(late, 12)
    bench.run()
    assert first.finish == out.finish == "length"
    assert out.ids == reference(model, late, 12).ids
