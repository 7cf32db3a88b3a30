"""Order, fairness, cancelling and failing, with a scripted model and steps by hand."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from servers.contiguous.errors import QueueFullError, RequestError
from servers.contiguous.sampling import SamplingParams
from servers.contiguous.sequence import ErrorEvent, Event, TokenEvent
from tests.contiguous.support import Bench, FakeModel, scripted_bench

KINDS = pytest.mark.parametrize("kind", ["static", "exact", "pow2", "dynamic"])


def fake(kind: str = "static", *given: Any, **options: Any) -> Bench:
    return scripted_bench(kind, *given, **options)


@KINDS
def test_one_event_per_token(kind: str) -> None:
    bench = fake(kind)
    _, out = bench.submit([10], 4)
    bench.run()
    assert out.events == [
        TokenEvent(11, "\x0b", 1),
        TokenEvent(12, "\x0c", 2),
        TokenEvent(13, "\r", 3),
        TokenEvent(14, "\x0e", 4, "length"),
    ]


@KINDS
def test_decode_is_one_forward_over_all(kind: str) -> None:
    """Three requests: 3 prefills, then each forward has a batch of 3."""
    batches: list[int] = []
    bench = fake(kind, lambda number, batch: batches.append(batch))
    for start in (1, 20, 40):
        bench.submit([start], 5)
    bench.run()
    assert batches == [1, 1, 1, 3, 3, 3, 3]


def test_without_batching_one_runs_at_a_time() -> None:
    batches: list[int] = []
    bench = fake("static", lambda number, batch: batches.append(batch), max_num_seqs=1)
    outs = [bench.submit([start], 5)[1] for start in (1, 20)]
    bench.steps(1)
    now = bench.engine.snapshot()
    assert (now.running, now.waiting, now.waiting_for_kv) == (1, 1, 0)
    bench.run()
    assert batches == [1] * 10
    assert [out.ids for out in outs] == [[2, 3, 4, 5, 6], [21, 22, 23, 24, 25]]


def test_a_long_prompt_delays_a_running_stream_by_one_chunk_a_token() -> None:
    """A prompt of 100 in chunks of 16 takes 7 steps, and the stream gets a token in each."""
    bench = fake(prefill_chunk=16)
    _, stream = bench.submit([1], 50)
    bench.steps(1)
    bench.submit([5] * 100, 1)
    for step in range(7):
        before = len(stream.ids)
        bench.steps(1)
        assert len(stream.ids) == before + 1
        assert bench.engine.snapshot().running == (2 if step < 6 else 1)


def test_short_prompts_share_one_chunk() -> None:
    """5 prompts of 4 tokens within 16: four in the first step, the fifth in the second."""
    bench = fake(prefill_chunk=16)
    outs = [bench.submit([1] * 4, 9)[1] for _ in range(5)]
    bench.steps(1)
    assert [len(out.ids) for out in outs] == [2, 2, 2, 2, 0]
    bench.steps(1)
    assert [len(out.ids) for out in outs] == [3, 3, 3, 3, 2]


@KINDS
def test_first_come_first_served(kind: str) -> None:
    bench = fake(kind, slots=2, max_model_len=32)
    outs = [bench.submit([1] * 16, 16)[1] for _ in range(4)]
    bench.steps(2)
    assert [bool(out.ids) for out in outs] == [True, True, False, False]
    now = bench.engine.snapshot()
    assert (now.running, now.waiting, now.waiting_for_kv) == (2, 2, 2)
    bench.run()
    assert all(out.finish == "length" for out in outs)


@KINDS
def test_f119_a_client_that_leaves_frees_its_cache_within_two_steps(kind: str) -> None:
    model = FakeModel()
    bench = Bench(model, FakeModel.LAYOUT, kind, max_model_len=2048)
    sequence, out = bench.submit([1], 2000)
    bench.steps(4)
    assert len(out.ids) == 5
    bench.engine.cancel(sequence)
    forwards = model.forwards
    bench.steps(1)
    assert model.forwards == forwards
    assert len(out.ids) == 5
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)
    assert bench.outcomes("cancelled") == 1


def test_cancelling_a_waiting_request_frees_its_place_at_once() -> None:
    bench = fake(slots=1, max_waiting=1)
    bench.submit([1], 9)
    bench.steps(1)
    waiting, out = bench.submit([1], 9)
    with pytest.raises(QueueFullError):
        bench.submit([1], 9)
    bench.engine.cancel(waiting)
    assert bench.engine.snapshot().waiting == 0
    bench.submit([1], 9)
    bench.run()
    assert out.events == []
    assert bench.outcomes("cancelled") == 1


@KINDS
def test_cancelling_a_prefilling_request(kind: str) -> None:
    bench = fake(kind, prefill_chunk=16)
    _, stream = bench.submit([1], 30)
    bench.steps(1)
    sequence, out = bench.submit([5] * 100, 5)
    bench.steps(2)
    assert sequence.prefilled == 32
    bench.engine.cancel(sequence)
    bench.run()
    assert out.events == []
    assert len(stream.ids) == 30
    assert bench.outcomes("cancelled") == 1


def test_cancelling_what_has_ended_changes_nothing() -> None:
    bench = fake()
    sequence, _ = bench.submit([1], 2)
    bench.run()
    bench.engine.cancel(sequence)
    bench.run()
    assert bench.outcomes("cancelled") == 0
    assert bench.outcomes("length") == 1


@KINDS
def test_f118_an_exception_while_decoding_ends_its_requests_and_frees_their_slots(
    kind: str,
) -> None:
    """The 4th forward raises after the layer was written: both fail, the next one is served."""

    def before(number: int, batch: int) -> None:
        if number == 4:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.\nmore lines")

    bench = fake(kind, before, slots=2)
    outs = [bench.submit([start], 20)[1] for start in (1, 30)]
    bench.run()
    for out in outs:
        # a prefill each and two decode steps
        assert len(out.ids) == 3
        assert out.error == "decoding failed: OutOfMemoryError: Tried to allocate 2.00 GiB."
    assert bench.outcomes("error") == 2
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)
    _, after = bench.submit([7], 3)
    bench.run()
    assert after.ids == [8, 9, 10]


@KINDS
def test_f118_an_exception_while_prefilling_leaves_the_neighbours_alone(kind: str) -> None:
    def before(number: int, batch: int) -> None:
        if number == 3:
            raise RuntimeError("boom")

    bench = fake(kind, before)
    _, stream = bench.submit([1], 10)
    bench.steps(2)
    _, failed = bench.submit([5] * 20, 10)
    _, behind = bench.submit([30], 2)
    bench.run()
    assert failed.events == [ErrorEvent("prefilling failed: RuntimeError: boom")]
    assert stream.ids == list(range(2, 12))
    assert behind.ids == [31, 32]


def test_f120_a_failed_request_leaves_no_reference_in_a_traceback() -> None:
    def before(number: int, batch: int) -> None:
        if number == 2:
            raise RuntimeError("boom")

    bench = fake("dynamic", before)
    sequence, out = bench.submit([1], 10)
    watched = weakref.ref(sequence)
    bench.run()
    assert out.error is not None
    del sequence
    gc.collect()
    assert watched() is None


def test_a_failed_repack_ends_the_neighbours_too_and_the_server_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = fake("dynamic")
    _, first = bench.submit([1], 2)
    _, second = bench.submit([20], 9)

    def no_memory(rows: Any) -> list[int]:
        raise torch.OutOfMemoryError("re-pack")

    with monkeypatch.context() as patched:
        patched.setattr(bench.cache, "leave", no_memory)
        bench.run()
    assert first.finish == "length"
    assert second.error == "the batch could not be re-packed: OutOfMemoryError: re-pack"
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)
    _, after = bench.submit([7], 3)
    bench.run()
    assert after.ids == [8, 9, 10]


def test_stop_string_ends_the_request_in_the_same_step() -> None:
    """65, 66, 67 are A, B, C: the model counts up, and the vocabulary ends at 64, so use low
    control characters: 5 then 6 make the stop string."""
    bench = fake()
    _, out = bench.submit([3], 20, stop=("\x05\x06",))
    bench.run()
    assert out.ids == [4, 5, 6]
    assert out.text == "\x04"
    last = out.events[-1]
    assert isinstance(last, TokenEvent)
    assert (last.finish_reason, last.stop_reason) == ("stop", "\x05\x06")
    assert bench.engine.snapshot().running == 0


def test_stop_token_ends_without_its_text() -> None:
    bench = fake()
    _, out = bench.submit([3], 20, stop_token_ids=frozenset([6]))
    bench.run()
    assert (out.ids, out.text, out.finish) == ([4, 5, 6], "\x04\x05", "stop")


def test_a_request_of_one_token() -> None:
    bench = fake()
    _, out = bench.submit([3], 1)
    bench.run()
    assert (out.ids, out.finish) == ([4], "length")


def test_times_are_measured_by_the_clock_that_is_given() -> None:
    """Waits 2 s, prefills for 3 s, then two gaps of 0.5 s."""
    waits = iter([3.0, 0.5, 0.5])
    bench = fake(before=lambda number, batch: pass_time(next(waits)))

    def pass_time(seconds: float) -> None:
        bench.clock.now_s += seconds

    bench.submit([1], 3)
    pass_time(2.0)
    bench.run()

    def total(name: str) -> float | None:
        return bench.registry.get_sample_value(f"contiguous_{name}_sum", {"model": "m"})

    assert total("queue_seconds") == 2.0
    assert total("prefill_seconds") == 3.0
    assert total("time_to_first_token_seconds") == 5.0
    assert total("decode_seconds") == 1.0
    assert total("inter_token_latency_seconds") == 1.0


def test_tokens_are_counted() -> None:
    bench = fake(prefill_chunk=16)
    bench.submit([1] * 40, 7)
    bench.submit([1] * 5, 3)
    bench.run()

    def total(name: str) -> float | None:
        return bench.registry.get_sample_value(f"contiguous_{name}_total", {"model": "m"})

    assert total("prompt_tokens") == 45
    assert total("generation_tokens") == 10


def test_thread_wakes_up_and_stops() -> None:
    """Submitting wakes the sleeping engine; stopping ends running and waiting requests."""
    entered, go_on = threading.Event(), threading.Event()

    def before(number: int, batch: int) -> None:
        if number == 5:
            entered.set()
            go_on.wait(10)

    bench = fake("static", before, slots=1)
    bench.engine.start()
    _, running = bench.submit([1], 400)
    assert entered.wait(10)
    _, waiting = bench.submit([1], 5)
    bench.engine.request_stop()
    go_on.set()
    bench.engine.stop()
    assert not bench.engine.alive
    assert running.error == "the server is shutting down"
    assert waiting.events == [ErrorEvent("the server is shutting down", 503)]
    with pytest.raises(RequestError, match="shutting down"):
        bench.submit([1], 5)


def test_an_unexpected_error_in_a_step_does_not_end_the_thread() -> None:
    """Not in a forward, where errors are looked for, but between two."""
    bench = fake()
    failed, served = threading.Event(), threading.Event()
    made, out = bench.sequence([1], SamplingParams(max_tokens=2, temperature=0.0))

    def sink(event: Event) -> None:
        out.events.append(event)
        failed.set()

    made.sink = sink
    bench.engine.submit(made)
    bench.clock.broken = True
    bench.engine.start()
    assert failed.wait(10)
    assert out.error == "the engine failed; see the server's log"
    after, _ = bench.sequence([1], SamplingParams(max_tokens=1, temperature=0.0))
    after.sink = lambda event: served.set()
    bench.engine.submit(after)
    assert served.wait(10)
    bench.engine.stop()
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)
