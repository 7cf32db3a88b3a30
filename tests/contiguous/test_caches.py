"""Bytes to the byte, rows in their places, and what is kept when requests leave."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from servers.contiguous.admission import FreeSpace
from servers.contiguous.cache_arena import ArenaBatchCache
from servers.contiguous.cache_dynamic import DynamicBatchCache
from servers.contiguous.cache_static import StaticBatchCache
from servers.contiguous.layout import KvLayout, LayerShape, probe_layout
from tests.contiguous.support import CPU, Bench, random_prompt, reference

ALL = ["static", "exact", "pow2", "dynamic", "batch-max", "batch-exact", "batch-dynamic"]

#: the tiny model in float32: 4 layers x 2 KV heads x 32 x 2 (K and V) x 4 B
PER_TOKEN = 4 * 2 * 32 * 2 * 4


def test_layout_is_measured(layout: KvLayout, bf16_model: Any) -> None:
    assert layout.layers == (LayerShape(2, 32, 32),) * 4
    assert layout.bytes_per_token == PER_TOKEN == 2048
    assert probe_layout(bf16_model, CPU).bytes_per_token == 1024


def test_unequal_key_and_value_sizes_count_both() -> None:
    """1 layer x 3 heads x (8 + 4) x 2 B."""
    assert KvLayout((LayerShape(3, 8, 4),), torch.bfloat16, CPU).bytes_per_token == 72


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("max_model_len", [64, 300])
def test_static_bytes(model: Any, layout: KvLayout, rows: int, max_model_len: int) -> None:
    """Used and reserved are whole slots, however short the requests."""
    bench = Bench(model, layout, "static", slots=6, max_model_len=max_model_len)
    assert isinstance(bench.cache, StaticBatchCache)
    assert bench.cache.pool_bytes == 6 * max_model_len * PER_TOKEN
    for index in range(rows):
        bench.submit(random_prompt(3 + index, index), 20)
    bench.steps(4)
    now = bench.engine.snapshot()
    assert now.kv_used_bytes == now.kv_reserved_bytes == rows * max_model_len * PER_TOKEN
    # prompts of 3, 4, ...; all prefilled in the first step, then 4 decode steps
    assert now.kv_tokens_held == sum(3 + index + 4 for index in range(rows))


@pytest.mark.parametrize("lengths", [[7], [7, 7, 7], [3, 50, 17], [129, 1]])
def test_dynamic_bytes(model: Any, layout: KvLayout, lengths: list[int]) -> None:
    """Used is the padded batch, reserved the same with every row as long as its promise.

    ``[129, 1]``: used 2 x (129 + 4) = 266 tokens, reserved 2 x (129 + 20) = 298.
    """
    bench = Bench(model, layout, "dynamic")
    for index, length in enumerate(lengths):
        bench.submit(random_prompt(length, index), 20)
    bench.steps(4)
    now = bench.engine.snapshot()
    width = max(lengths) + 4
    assert now.kv_used_bytes == len(lengths) * width * PER_TOKEN
    assert now.kv_reserved_bytes == len(lengths) * (max(lengths) + 20) * PER_TOKEN
    assert now.kv_tokens_held == sum(lengths) + 4 * len(lengths)
    assert now.kv_padding_bytes == (len(lengths) * width - now.kv_tokens_held) * PER_TOKEN


@pytest.mark.parametrize("reserve", ["exact", "pow2"])
def test_arena_bytes(model: Any, layout: KvLayout, reserve: str) -> None:
    """Reserved are the regions, 27, 70 and 149 tokens (32, 128 and 256), used the tokens.

    After 4 decode steps 11 + 54 + 133 = 198 tokens are stored.
    """
    bench = Bench(model, layout, reserve, slots=2, max_model_len=300)
    assert isinstance(bench.cache, ArenaBatchCache)
    assert bench.cache.arena_bytes == 600 * PER_TOKEN
    for index, length in enumerate((7, 50, 129)):
        bench.submit(random_prompt(length, index), 20)
    bench.steps(4)
    now = bench.engine.snapshot()
    regions = {"exact": 27 + 70 + 149, "pow2": 32 + 128 + 256}[reserve]
    assert now.kv_reserved_bytes == regions * PER_TOKEN
    assert (now.kv_used_bytes, now.kv_tokens_held) == (198 * PER_TOKEN, 198)
    assert now.kv_padding_bytes == 0
    free = (600 - regions) * PER_TOKEN
    assert now.free_space == FreeSpace(free, free)


def test_f123_a_fragmented_arena_keeps_a_request_waiting(model: Any, layout: KvLayout) -> None:
    """100 tokens as [a 30][b 40][c 30]: a and c end, 60 are free, and d's 50 lie nowhere.

    d waits until b has ended, and its answer is right in a region that others have used.
    """
    bench = Bench(model, layout, "exact", slots=1, max_model_len=100)
    sizes = [(26, 4), (20, 20), (26, 4), (40, 10)]
    outs = [bench.submit(random_prompt(p, i), n)[1] for i, (p, n) in enumerate(sizes)]
    bench.steps(5)
    now = bench.engine.snapshot()
    assert (now.running, now.waiting, now.waiting_for_kv, now.waiting_for_region) == (1, 1, 1, 1)
    assert now.free_space == FreeSpace(60 * PER_TOKEN, 30 * PER_TOKEN)
    bench.run()
    assert [out.ids for out in outs] == [
        reference(model, random_prompt(p, i), n).ids for i, (p, n) in enumerate(sizes)
    ]


def test_arena_rows_never_read_a_neighbour() -> None:
    """Where rows differ in length the shorter one repeats its own last token, [5] and [9, 9]:
    a neighbour's infinite value times a weight of 0 would be no number."""
    cache = ArenaBatchCache(KvLayout((LayerShape(1, 2, 2),), torch.float32, CPU), 10)
    for start, value, length in ((4, 5.0, 1), (0, 9.0, 2)):
        cache.start_prefill(start)
        states = torch.full((1, 1, length, 2), value)
        cache.prefill_args(length).past_key_values.update(states, states, 0)
        cache.prefilled(length)
        cache.join()
    args = cache.decode_args()
    new = torch.tensor([6.0, 10.0])[:, None, None, None].expand(2, 1, 1, 2)
    keys, _ = args.past_key_values.update(new, new, 0)
    assert keys[:, 0, :, 0].tolist() == [[5.0, 6.0, 6.0], [9.0, 9.0, 10.0]]
    assert args.attention_mask is not None
    assert args.attention_mask[:, 0, 0].tolist() == [[True, True, False], [True] * 3]
    assert args.position_ids.tolist() == [[1], [2]]


def test_one_row_of_an_arena_is_read_where_it_lies() -> None:
    cache = ArenaBatchCache(KvLayout((LayerShape(1, 2, 2),), torch.float32, CPU), 10)
    cache.start_prefill(3)
    states = torch.ones(1, 1, 2, 2)
    keys, _ = cache.prefill_args(2).past_key_values.update(states, states, 0)
    assert keys.untyped_storage().data_ptr() == keys.data_ptr() - 3 * 2 * 4
    cache.prefilled(2)
    cache.join()
    one = states[:, :, :1]
    keys, _ = cache.decode_args().past_key_values.update(one, one, 0)
    assert keys.shape == (1, 1, 3, 2)
    assert keys.untyped_storage().nbytes() == 10 * 2 * 4


@pytest.mark.parametrize("kind", ALL)
def test_held_is_at_most_used_and_used_at_most_reserved(
    model: Any, layout: KvLayout, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every step and every release, while unequal requests are prefilled in chunks."""
    bench = Bench(model, layout, kind, prefill_chunk=16)
    admission = bench.admission
    releases: list[int] = []
    plain_release = admission.release

    def release(sequence: Any) -> None:
        plain_release(sequence)
        # what a scrape reads at this moment; a snapshot would wait for the lock held here
        releases.append(admission.reserved_bytes - bench.engine._batch.held.used_bytes)

    monkeypatch.setattr(admission, "release", release)
    for index, (prompt, answer) in enumerate([(129, 3), (1, 30), (40, 1), (7, 12), (90, 9)]):
        bench.submit(random_prompt(prompt, index), answer)
    while bench.engine.step():
        now = bench.engine.snapshot()
        assert now.kv_tokens_held * PER_TOKEN <= now.kv_used_bytes <= now.kv_reserved_bytes
        assert now.kv_padding_bytes <= now.kv_used_bytes - now.kv_tokens_held * PER_TOKEN
    # a batch that runs until all have ended releases its rows together
    assert len(releases) == (0 if kind.startswith("batch") else 5)
    assert min(releases, default=0) >= 0


def test_dynamic_trims_when_the_longest_leaves(model: Any, layout: KvLayout) -> None:
    """100 + 3 tokens wide while the long one runs; 10 + 5 after it has left."""
    bench = Bench(model, layout, "dynamic")
    bench.submit(random_prompt(100, 0), 4)
    bench.submit(random_prompt(10, 1), 20)
    bench.submit(random_prompt(8, 2), 20)
    bench.steps(2)
    assert bench.engine.snapshot().kv_used_bytes == 3 * 102 * PER_TOKEN
    # the fourth token ends it: prefill gave the first, three decode steps the others
    bench.steps(1)
    assert bench.engine.snapshot().kv_used_bytes == 2 * 13 * PER_TOKEN
    bench.run()
    assert bench.engine.snapshot().kv_used_bytes == 0


@pytest.mark.parametrize("kind", ALL)
def test_nothing_is_held_when_nobody_runs(model: Any, layout: KvLayout, kind: str) -> None:
    bench = Bench(model, layout, kind)
    for index in range(5):
        bench.submit(random_prompt(9 + index, index), 3 + index)
    bench.run()
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes, now.kv_tokens_held) == (0,) * 4


def filled(slots: int, lengths: list[int]) -> tuple[StaticBatchCache, Any]:
    """A pool whose row ``i`` holds ``lengths[i]`` tokens with the value ``i + 1``."""
    cache = StaticBatchCache(KvLayout((LayerShape(1, 2, 2),), torch.float32, CPU), slots, 16)
    layer: Any = None
    for index, length in enumerate(lengths):
        cache.start_prefill()
        args = cache.prefill_args(length)
        layer = args.past_key_values.layers[0]
        states = torch.full((1, 1, length, 2), index + 1.0)
        args.past_key_values.update(states, states, 0)
        cache.prefilled(length)
        cache.join()
    return cache, layer


def test_static_fills_a_freed_row_with_the_last() -> None:
    cache, layer = filled(5, [2, 3, 4, 5])
    assert cache.leave([1]) == [0, 3, 2]
    assert layer.keys[1, 0, :5, 0].tolist() == [4.0] * 5
    assert cache.tokens_held() == 2 + 5 + 4
    assert cache.leave([0, 2]) == [1]
    assert layer.keys[0, 0, :5, 0].tolist() == [4.0] * 5


def test_static_moves_the_prefilling_row_too() -> None:
    cache, layer = filled(3, [2, 3])
    cache.start_prefill()
    states = torch.full((1, 1, 4, 2), 9.0)
    cache.prefill_args(4).past_key_values.update(states, states, 0)
    cache.prefilled(4)
    assert cache.used_bytes() == 3 * 16 * 16
    assert cache.leave([0]) == [1]
    assert layer.keys[1, 0, :4, 0].tolist() == [9.0] * 4
    cache.join()
    assert cache.tokens_held() == 3 + 4


def test_static_refuses_one_row_too_many() -> None:
    cache, _ = filled(2, [1, 1])
    with pytest.raises(RuntimeError, match="no free slot"):
        cache.start_prefill()


def test_equal_lengths_need_no_mask() -> None:
    """So that attention may take its fast path, as generate's does."""
    cache, _ = filled(3, [4, 4])
    assert cache.decode_args().attention_mask is None
    cache, _ = filled(3, [4, 2])
    mask = cache.decode_args().attention_mask
    assert mask is not None
    # row 0 sees positions 0 to 4, row 1 positions 0 to 2: the new token is among them
    assert mask[:, 0, 0].tolist() == [[True] * 5, [True] * 3 + [False] * 2]


def test_dynamic_hides_its_padding() -> None:
    cache = DynamicBatchCache(KvLayout((LayerShape(1, 2, 2),), torch.float32, CPU))
    for length in (3, 1):
        cache.start_prefill()
        states = torch.zeros(1, 1, length, 2)
        cache.prefill_args(length).past_key_values.update(states, states, 0)
        cache.prefilled(length)
        cache.join()
    args = cache.decode_args()
    assert args.position_ids.tolist() == [[3], [1]]
    assert args.attention_mask is not None
    assert args.attention_mask[:, 0, 0].tolist() == [[True] * 4, [False, False, True, True]]


def test_f122_f124_dynamic_layers_are_exact_after_every_step(model: Any, layout: KvLayout) -> None:
    """transformers' layers hold keys and values only, and each step leaves no slack behind."""
    bench = Bench(model, layout, "dynamic")
    bench.submit(random_prompt(5, 0), 20)
    for step in range(1, 6):
        bench.steps(1)
        assert bench.engine.snapshot().kv_used_bytes == (5 + step) * PER_TOKEN


def test_f123_static_slots_are_exactly_max_model_len(model: Any, layout: KvLayout) -> None:
    """A request of exactly max_model_len fits: 44 + 20 = 64; the last token is never stored."""
    bench = Bench(model, layout, "static", slots=1, max_model_len=64)
    _, out = bench.submit(random_prompt(44, 0), 20)
    bench.run()
    assert len(out.ids) == 20


def test_f120_the_cache_of_a_cancelled_stream_is_freed(model: Any, layout: KvLayout) -> None:
    """No reference stays behind in the engine, a frame or a traceback."""
    bench = Bench(model, layout, "dynamic")
    sequence, _ = bench.submit(random_prompt(30, 0), 100)
    bench.steps(3)
    assert isinstance(bench.cache, DynamicBatchCache)
    held = bench.cache.decode_args().past_key_values
    watched: list[Any] = [weakref.ref(held), weakref.ref(held.layers[0]), weakref.ref(sequence)]
    bench.engine.cancel(sequence)
    bench.steps(1)
    del held, sequence
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3
