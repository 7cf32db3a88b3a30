"""Batches that run until all have ended, with a scripted model and steps by hand."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from servers.contiguous.errors import QueueFullError
from servers.contiguous.layout import probe_layout
from servers.contiguous.sequence import ErrorEvent
from tests.contiguous.support import CPU, Bench, FakeModel, random_prompt, reference, scripted_bench

#: 1 layer x 1 head x (2 + 2) float32
EACH = 16
KINDS = pytest.mark.parametrize("kind", ["batch-max", "batch-pow2", "batch-exact", "batch-dynamic"])


def fake(kind: str = "batch-dynamic", *given: Any, **options: Any) -> Bench:
    return scripted_bench(kind, *given, **options)


@KINDS
def test_prompts_are_prefilled_together_and_nobody_joins(kind: str) -> None:
    """Three at first, 1 prefill + 4 decode steps; who came meanwhile makes the next batch."""
    batches: list[int] = []
    bench = fake(kind, lambda number, batch: batches.append(batch))
    outs = [bench.submit([start], 5)[1] for start in (1, 20, 40)]
    bench.steps(1)
    assert [out.ids for out in outs] == [[2], [21], [41]]
    _, late = bench.submit([50], 2)
    bench.steps(1)
    now = bench.engine.snapshot()
    assert (now.running, now.waiting, now.waiting_for_kv) == (3, 1, 0)
    bench.run()
    assert batches == [3] * 5 + [1] * 2
    assert [out.ids for out in outs] == [list(range(at, at + 5)) for at in (2, 21, 41)]
    assert late.ids == [51, 52]


def test_a_batch_takes_what_waits_up_to_its_size() -> None:
    batches: list[int] = []
    bench = fake(before=lambda number, batch: batches.append(batch), max_num_seqs=2)
    for start in range(5):
        bench.submit([start], 2)
    bench.run()
    assert batches == [2, 2, 2, 2, 1, 1]


@KINDS
def test_a_row_that_has_ended_stays_reserved_and_is_computed(kind: str) -> None:
    """5 + 2 and 2 + 6 tokens: columns 5 + 6 = 11 (pow2: 16, max: 64), two rows.

    After the prefill and two decode steps 7 columns are stored; the second row has 3 of
    padding, the first one's request has ended with its second token.
    """
    batches: list[int] = []
    bench = fake(kind, lambda number, batch: batches.append(batch), max_model_len=64)
    _, short = bench.submit([1, 2, 3, 4, 5], 2)
    _, long = bench.submit([20, 21], 6)
    bench.steps(1)
    columns = {"batch-max": 64, "batch-pow2": 16}.get(kind, 11)
    now = bench.engine.snapshot()
    assert (now.running, now.kv_reserved_bytes) == (2, 2 * columns * EACH)
    assert (now.kv_used_bytes, now.kv_tokens_held) == (2 * 5 * EACH, 5 + 2)
    assert now.kv_padding_bytes == 3 * EACH
    bench.steps(2)
    assert (short.finish, long.finish) == ("length", None)
    now = bench.engine.snapshot()
    assert (now.running, now.kv_reserved_bytes) == (1, 2 * columns * EACH)
    assert (now.kv_used_bytes, now.kv_tokens_held) == (2 * 7 * EACH, 4)
    assert now.kv_padding_bytes == (7 + 3) * EACH
    bench.run()
    assert batches == [2] * 6
    assert (short.ids, long.ids) == ([6, 7], [22, 23, 24, 25, 26, 27])
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes, now.kv_tokens_held) == (0,) * 4


def test_a_prompt_is_read_in_chunks_of_the_whole_batch() -> None:
    """Two rows of 40 columns, 16 tokens a forward: 8 columns each, so 5 forwards."""
    model = FakeModel()
    bench = Bench(model, FakeModel.LAYOUT, "batch-exact", prefill_chunk=16)
    outs = [bench.submit([7] * length, 1)[1] for length in (40, 3)]
    bench.steps(4)
    assert [out.ids for out in outs] == [[], []]
    bench.steps(1)
    assert model.forwards == 5
    assert [out.ids for out in outs] == [[8], [8]]
    assert bench.registry.get_sample_value("contiguous_prompt_tokens_total", {"model": "m"}) == 43


@KINDS
def test_f119_a_client_that_leaves_gets_nothing_more_and_frees_nothing(kind: str) -> None:
    batches: list[int] = []
    bench = fake(kind, lambda number, batch: batches.append(batch))
    leaving, gone = bench.submit([1], 100)
    _, stays = bench.submit([20], 6)
    bench.steps(2)
    before = bench.engine.snapshot()
    bench.engine.cancel(leaving)
    bench.steps(1)
    now = bench.engine.snapshot()
    assert len(gone.events) == 2
    assert (now.running, now.kv_reserved_bytes) == (1, before.kv_reserved_bytes)
    bench.run()
    # the batch ends with the one that stayed, not after 100 tokens
    assert batches == [2] * 6
    assert len(gone.events) == 2
    assert stays.finish == "length"
    assert (bench.outcomes("cancelled"), bench.outcomes("length")) == (1, 1)
    assert bench.engine.snapshot().kv_reserved_bytes == 0


@pytest.mark.parametrize("steps", [1, 4])
def test_f119_a_batch_that_all_clients_left_ends_at_once(steps: int) -> None:
    """While its prompts are read (of 5 forwards 1 has run) and while it decodes."""
    model = FakeModel()
    bench = Bench(model, FakeModel.LAYOUT, "batch-max", prefill_chunk=16 if steps == 1 else 512)
    made = [bench.submit([3] * 40, 50) for _ in range(2)]
    bench.steps(steps)
    forwards = model.forwards
    for sequence, _ in made:
        bench.engine.cancel(sequence)
    bench.steps(1)
    assert model.forwards == forwards
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)
    assert bench.outcomes("cancelled") == 2


@KINDS
def test_f118_an_exception_ends_the_batch_with_errors_and_the_next_is_served(kind: str) -> None:
    """The third forward raises: the row that had ended keeps its answer."""

    def before(number: int, batch: int) -> None:
        if number == 2:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.\nmore lines")

    bench = fake(kind, before)
    _, done = bench.submit([1], 1)
    outs = [bench.submit([start], 20)[1] for start in (10, 30)]
    bench.run()
    assert (done.ids, done.finish) == ([2], "length")
    for out in outs:
        assert len(out.ids) == 2
        assert out.error == "decoding failed: OutOfMemoryError: Tried to allocate 2.00 GiB."
    assert bench.outcomes("error") == 2
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)
    _, after = bench.submit([7], 3)
    bench.run()
    assert after.ids == [8, 9, 10]


def test_f118_an_exception_while_prefilling_ends_all_of_the_batch() -> None:
    def before(number: int, batch: int) -> None:
        if number == 0:
            raise RuntimeError("boom")

    bench = fake(before=before, max_num_seqs=2)
    outs = [bench.submit([start], 3)[1] for start in (1, 10, 20)]
    bench.run()
    failed = [ErrorEvent("prefilling failed: RuntimeError: boom")]
    assert [out.events for out in outs[:2]] == [failed, failed]
    assert outs[2].ids == [21, 22, 23]


def test_f120_a_cancelled_request_leaves_no_reference_while_its_batch_goes_on() -> None:
    bench = fake("batch-dynamic")
    sequence, _ = bench.submit([1], 50)
    bench.submit([20], 50)
    bench.steps(3)
    watched = weakref.ref(sequence)
    bench.engine.cancel(sequence)
    bench.steps(1)
    del sequence
    gc.collect()
    assert watched() is None
    assert bench.engine.snapshot().running == 1


def test_f120_the_cache_of_a_batch_is_freed_with_it(model: Any, layout: Any) -> None:
    bench = Bench(model, layout, "batch-dynamic")
    bench.submit(random_prompt(30, 0), 5)
    bench.steps(2)
    held = bench.runner.cache.args(1).past_key_values
    watched: list[Any] = [weakref.ref(held), weakref.ref(held.layers[0])]
    bench.run()
    del held
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_f127_the_queue_before_a_batch_is_bounded() -> None:
    bench = fake(max_num_seqs=1, max_waiting=1)
    bench.submit([1], 9)
    bench.steps(1)
    bench.submit([1], 9)
    with pytest.raises(QueueFullError):
        bench.submit([1], 9)


def test_stopping_ends_the_batch_and_who_waits() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def before(number: int, batch: int) -> None:
        if number == 5:
            entered.set()
            go_on.wait(10)

    bench = fake(before=before, max_num_seqs=1)
    bench.engine.start()
    _, running = bench.submit([1], 400)
    assert entered.wait(10)
    _, waiting = bench.submit([1], 5)
    bench.engine.request_stop()
    go_on.set()
    bench.engine.stop()
    assert running.error == "the server is shutting down"
    assert waiting.events == [ErrorEvent("the server is shutting down", 503)]


@KINDS
def test_rows_go_on_after_their_end(model: Any, layout: Any, kind: str) -> None:
    """100 + 4 and 1 + 28 of 128 tokens: 128 columns, of which the first row needs 104."""
    bench = Bench(model, layout, kind, slots=4, max_model_len=128)
    sizes = [(100, 4), (1, 28)]
    outs = [bench.submit(random_prompt(p, i), n)[1] for i, (p, n) in enumerate(sizes)]
    bench.run()
    assert [out.ids for out in outs] == [
        reference(model, random_prompt(p, i), n).ids for i, (p, n) in enumerate(sizes)
    ]


@KINDS
def test_used_is_what_the_storages_hold(model: Any, layout: Any, kind: str) -> None:
    """2 rows x 20 columns x 2,048 B after the prefill, and a column more per step."""
    bench = Bench(model, layout, kind)
    for index, length in enumerate((20, 7)):
        bench.submit(random_prompt(length, index), 9)
    for step in range(9):
        bench.steps(1)
        now = bench.engine.snapshot()
        if step < 8:
            assert now.kv_used_bytes == 2 * (20 + step) * 2048
            assert now.kv_padding_bytes == 13 * 2048
            assert now.kv_tokens_held * 2048 + now.kv_padding_bytes == now.kv_used_bytes
        assert now.kv_used_bytes <= now.kv_reserved_bytes


def test_positions_stay_possible_after_a_rows_end() -> None:
    """60 + 4 and 1 + 60 of 64 learned positions: the first row's would come to 119."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=300, n_positions=64)
    model = GPT2LMHeadModel(config).eval()
    bench = Bench(model, probe_layout(model, CPU), "batch-dynamic", max_model_len=64)
    sizes = [(60, 4), (1, 60)]
    outs = [bench.submit(random_prompt(p, i), n)[1] for i, (p, n) in enumerate(sizes)]
    bench.run()
    assert [out.ids for out in outs] == [
        reference(model, random_prompt(p, i), n).ids for i, (p, n) in enumerate(sizes)
    ]
