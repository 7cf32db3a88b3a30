"""Bytes of the modes off, quantized and sliding, to the byte and by hand."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from servers.contiguous.admission import Promise
from servers.contiguous.admission_modes import QuantizedPolicy, SlidingPolicy
from servers.contiguous.cache_quantized import QuantizedBatchCache
from servers.contiguous.cache_sliding import SlidingBatchCache
from servers.contiguous.layout import KvLayout, LayerShape
from servers.contiguous.quantized_size import QuantizedSize
from tests.contiguous.modes import mode_bench
from tests.contiguous.support import CPU, Bench, random_prompt
from tests.contiguous.test_modes_greedy import WINDOW, gemma

#: numbers of a token: 4 layers x 2 KV heads x 32 x 2 (K and V)
ELEMENTS = 4 * 2 * 32 * 2
PER_TOKEN = ELEMENTS * 4
GIB = 2**30


def parts(bench: Bench) -> dict[str, int]:
    return dict(bench.engine.snapshot().kv_part_bytes)


def test_f125_a_quantized_request_is_not_n_times_bits_over_8(model: Any) -> None:
    """A prompt of 40 tokens in 4 bits, then 3 decoded ones at full precision (float32).

    Payload 40 x 512 x 4 / 8 = 10,240 B; scales and zeros 2 x 40 x 512 / 64 x 4 B = 2,560 B;
    residual 3 x 512 x 4 B = 6,144 B. n x bits / 8 alone would be 43 x 512 / 2 = 11,008 B.
    """
    bench = mode_bench(model, "quantized", kv_bits=4)
    bench.submit(random_prompt(40, 0), 20)
    # the first step prefills, gives a token and decodes it
    bench.steps(3)
    assert parts(bench) == {"payload": 10_240, "scales": 2_560, "residual": 6_144, "full": 0}
    now = bench.engine.snapshot()
    assert now.kv_used_bytes == 18_944
    assert now.kv_tokens_held == 43


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_bytes_step_by_step(bf16_model: Any, bits: int) -> None:
    """Three requests across the step at which a residual of 128 is quantized, in bfloat16."""
    bench = mode_bench(bf16_model, "quantized", kv_bits=bits)
    size = QuantizedSize(ELEMENTS, 2, bits)
    prompts = [5, 64, 33]
    for index, prompt in enumerate(prompts):
        bench.submit(random_prompt(prompt, index), 140)
    for decoded in range(1, 135):
        bench.steps(1)
        stored = [size.stored(prompt, decoded) for prompt in prompts]
        wanted = {part: sum(each[part] for each in stored) for part in stored[0]}
        assert parts(bench) == {**wanted, "full": 0}
    # 134 = 128 + 6: quantized once on the way
    assert parts(bench)["residual"] == 3 * 6 * ELEMENTS * 2


def test_a_prompt_is_full_until_it_is_whole(model: Any) -> None:
    """Chunks of 16 of 40 tokens: 32 are stored at full precision after two steps."""
    bench = mode_bench(model, "quantized", prefill_chunk=16)
    bench.submit(random_prompt(40, 0), 20)
    bench.steps(2)
    assert parts(bench) == {"payload": 0, "scales": 0, "residual": 0, "full": 32 * PER_TOKEN}


def test_joining_and_leaving_quantize_nobody_again(model: Any) -> None:
    """The very tensors of a neighbour stay, and so do their bits."""
    bench = mode_bench(model, "quantized")
    bench.submit(random_prompt(30, 0), 60)
    bench.steps(2)
    cache = bench.runner.cache
    assert isinstance(cache, QuantizedBatchCache)
    layer = cache._requests[0].layers[0]
    packed, meta = layer._quantized_keys
    before = packed.clone()
    gone, _ = bench.submit(random_prompt(90, 1), 60)
    bench.submit(random_prompt(7, 2), 2)
    bench.steps(3)
    bench.engine.cancel(gone)
    bench.steps(2)
    assert len(cache._requests) == 1
    assert cache._requests[0].layers[0] is layer
    assert layer._quantized_keys[0] is packed
    assert layer._quantized_keys[1] is meta
    assert torch.equal(packed, before)


def test_off_holds_nothing(model: Any) -> None:
    bench = mode_bench(model, "off")
    for index in range(3):
        bench.submit(random_prompt(9 + index, index), 5)
    bench.steps(2)
    now = bench.engine.snapshot()
    assert now.running == 3
    assert (now.kv_used_bytes, now.kv_reserved_bytes, now.kv_tokens_held) == (0, 0, 0)
    assert (now.kv_padding_bytes, parts(bench)) == (0, {"full": 0})


def test_off_computes_logits_of_one_position_a_row(model: Any) -> None:
    """Three rows that end in three columns: 3 x 1 rows of logits a step, not 3 x 3."""
    bench = mode_bench(model, "off")
    for index in range(3):
        bench.submit(random_prompt(9 + index, index), 5)
    bench.steps(1)
    seen: list[tuple[int, ...]] = []

    def note(_: Any, given: tuple[torch.Tensor, ...], logits: torch.Tensor) -> None:
        seen.append(tuple(logits.shape))

    hook = model.lm_head.register_forward_hook(note)
    bench.steps(1)
    hook.remove()
    assert seen == [(3, 1, model.config.vocab_size)]
    # nothing of ours stays on the model
    assert not model.lm_head._forward_pre_hooks


@pytest.mark.parametrize("lengths", [[7], [30, 9], [3, 90, 17]])
def test_sliding_bytes(model: Any, lengths: list[int]) -> None:
    """Rows x min(longest, window - 1) tokens: with a window of 24 no row is wider than 23."""
    bench = mode_bench(model, "sliding", sliding_window=WINDOW)
    for index, length in enumerate(lengths):
        bench.submit(random_prompt(length, index), 20)
    bench.steps(4)
    now = bench.engine.snapshot()
    width = min(max(lengths) + 4, 23)
    assert now.kv_used_bytes == len(lengths) * width * PER_TOKEN
    assert now.kv_tokens_held == sum(min(length + 4, 23) for length in lengths)
    held = sum(min(length + 4, 23) for length in lengths)
    assert now.kv_padding_bytes == (len(lengths) * width - held) * PER_TOKEN


def test_c73_a_layer_keeps_window_less_one_tokens() -> None:
    """Gemma 3's kind: two layers end at 23 tokens, the third holds all, 2 x 32 x 4 B each.

    Also while the prompt of 100 comes in chunks of 40: what is kept is no view of the chunk.
    """
    bench = mode_bench(gemma(), "sliding", prefill_chunk=40)
    bench.submit(random_prompt(100, 0), 20)
    bench.steps(2)
    assert bench.engine.snapshot().kv_used_bytes == (2 * 23 + 80) * 256
    bench.steps(2)
    # the rest of the prompt, and two decoded tokens
    assert bench.engine.snapshot().kv_used_bytes == (2 * 23 + 102) * 256


@pytest.mark.parametrize(
    ("layers", "shape", "window", "requests", "full_gib", "capped_gib"),
    [
        # Gemma 2 9B: 42 layers, 8 KV heads of 256, half of them with a window of 4,096
        (42, (8, 256), 4096, 1, 2.625, 1.969),
        # gpt-oss-20b: 24 layers, 8 KV heads of 64, half of them with a window of 128
        (24, (8, 64), 128, 32, 12.00, 6.09),
    ],
)
def test_c73_published_sizes_at_8192_tokens(
    layers: int,
    shape: tuple[int, int],
    window: int,
    requests: int,
    full_gib: float,
    capped_gib: float,
) -> None:
    heads, dim = shape
    wide = LayerShape(heads, dim, dim)
    narrow = LayerShape(heads, dim, dim, window, "sliding_attention")
    layout = KvLayout((wide, narrow) * (layers // 2), torch.bfloat16, CPU)
    assert requests * 8192 * layout.bytes_per_token / GIB == pytest.approx(full_gib, abs=5e-4)
    assert requests * layout.bytes_kept(8192) / GIB == pytest.approx(capped_gib, abs=4e-3)


def test_c74_lower_and_upper_reservation(model: Any) -> None:
    """Sliding reserves the window, 23 of 500 tokens; a cache of whole texts would need 500."""
    bench = mode_bench(model, "sliding", sliding_window=WINDOW)
    bench.submit(random_prompt(480, 0), 20)
    bench.steps(1)
    now = bench.engine.snapshot()
    assert now.kv_reserved_bytes == 23 * PER_TOKEN
    full = mode_bench(model, "sliding", sliding_window=512)
    full.submit(random_prompt(480, 0), 20)
    full.steps(1)
    assert full.engine.snapshot().kv_reserved_bytes == 500 * PER_TOKEN


@pytest.mark.parametrize(
    "mode",
    [{"cache": "quantized", "kv_bits": 4}, {"cache": "quantized", "kv_bits": 8},
     {"cache": "sliding", "sliding_window": WINDOW}, {"cache": "off"}],
    ids=["int4", "int8", "sliding", "off"],
)  # fmt: skip
def test_used_is_at_most_reserved(
    model: Any, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every step and every release, while unequal requests are prefilled in chunks."""
    bench = mode_bench(model, prefill_chunk=16, **mode)
    admission, plain = bench.admission, bench.admission.release
    slack: list[int] = []

    def release(sequence: Any) -> None:
        plain(sequence)
        slack.append(admission.reserved_bytes - bench.engine._batch.held.used_bytes)

    monkeypatch.setattr(admission, "release", release)
    sizes = [(129, 3), (1, 30), (40, 1), (7, 140), (90, 9)]
    for index, (prompt, answer) in enumerate(sizes):
        bench.submit(random_prompt(prompt, index), answer)
    while bench.engine.step():
        now = bench.engine.snapshot()
        assert sum(now.kv_part_bytes.values()) == now.kv_used_bytes
        assert now.kv_used_bytes - now.kv_padding_bytes >= 0
        assert now.kv_used_bytes <= now.kv_reserved_bytes
    assert len(slack) == len(sizes)
    assert min(slack) >= 0
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)


def test_quantized_admits_by_what_it_needs() -> None:
    """bf16, 512 numbers a token: 4 bits take 256 + 32 = 288 B, full 1,024 B.

    512 + 128 tokens: 513 x 288 + 127 x 1,024 = 277,792 B at most, since up to 127 tokens of
    the answer are not quantized yet; the prompt alone takes 524,288 B while it is computed,
    246,496 more than what is set aside for it. 1 MiB holds 2: 555,584 + 246,496 = 802,080;
    three would need 833,376 + 246,496 = 1,079,872 > 1,048,576.
    """
    policy = QuantizedPolicy(2**20, QuantizedSize(512, 2, 4), 256)
    promise = Promise(512, 128)
    assert policy.reserved_bytes([promise]) == 277_792 + 246_496
    assert policy.blocker([promise], promise) is None
    assert policy.reserved_bytes([promise] * 2) == 802_080
    assert policy.blocker([promise] * 2, promise) == "kv"
    assert policy.refusal(Promise(1024, 1)) is None
    refusal = policy.refusal(Promise(1025, 1))
    assert refusal is not None
    assert "1049600 B of KV" in refusal
    assert QuantizedPolicy(2**20, QuantizedSize(512, 2, 4), 1).blocker([promise], promise) == "seqs"


def test_sliding_admits_by_its_window(layout: KvLayout) -> None:
    """A budget of 100 tokens holds four rows of 23; alone, texts of any length fit."""
    policy = SlidingPolicy(100 * PER_TOKEN, layout.windowed(WINDOW).bytes_kept, 256)
    long = Promise(3000, 1000)
    assert policy.refusal(long) is None
    assert policy.blocker([long] * 3, long) is None
    assert policy.blocker([long] * 4, long) == "kv"
    assert SlidingPolicy(22 * PER_TOKEN, policy.row_bytes, 256).refusal(long) is not None


@pytest.mark.parametrize("mode", ["quantized", "sliding"])
def test_f120_the_cache_of_a_cancelled_stream_is_freed(model: Any, mode: str) -> None:
    """Of the neighbour stay 9 + 3 tokens, and no storage that has more in it.

    Asked before the next step: a sliding layer's next step copies it, whatever it held.
    """
    window = WINDOW if mode == "sliding" else None
    bench = mode_bench(model, mode, sliding_window=window)
    sequence, _ = bench.submit(random_prompt(30, 0), 100)
    bench.submit(random_prompt(9, 1), 100)
    bench.steps(3)
    cache = bench.runner.cache
    watched = [weakref.ref(sequence)]
    if isinstance(cache, QuantizedBatchCache):
        watched += [weakref.ref(layer) for layer in cache._requests[0].layers]
    bench.engine._batch.cancel(sequence)
    assert cache.tokens_held() == 12
    if isinstance(cache, SlidingBatchCache):
        assert cache.used_bytes() == 12 * PER_TOKEN
    bench.steps(1)
    del sequence
    gc.collect()
    assert {ref() for ref in watched} == {None}


@pytest.mark.parametrize("mode", ["off", "quantized", "sliding"])
def test_f118_a_failed_forward_ends_its_requests_and_the_server_goes_on(
    model: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory in the middle of a decode step: layer 2 of 4 is not written any more."""
    window = WINDOW if mode == "sliding" else None
    bench = mode_bench(model, mode, sliding_window=window)
    _, first = bench.submit(random_prompt(30, 0), 20)
    _, second = bench.submit(random_prompt(9, 1), 20)
    bench.steps(2)

    def no_memory(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patched:
        patched.setattr(model.model.layers[2].mlp, "forward", no_memory)
        bench.steps(1)
    for out in (first, second):
        assert out.error == "decoding failed: OutOfMemoryError: Tried to allocate 2.00 GiB."
    now = bench.engine.snapshot()
    assert (now.running, now.kv_used_bytes, now.kv_reserved_bytes) == (0, 0, 0)
    _, after = bench.submit(random_prompt(5, 2), 3)
    bench.run()
    assert after.finish == "length"


@pytest.mark.parametrize("mode", ["off", "quantized", "sliding"])
def test_f119_a_client_that_leaves_is_gone_within_two_steps(model: Any, mode: str) -> None:
    window = WINDOW if mode == "sliding" else None
    bench = mode_bench(model, mode, sliding_window=window)
    sequence, out = bench.submit(random_prompt(30, 0), 100)
    bench.steps(5)
    seen = len(out.ids)
    bench.engine.cancel(sequence)
    bench.steps(2)
    assert len(out.ids) <= seen + 1
    assert bench.outcomes("cancelled") == 1
    assert bench.engine.snapshot().kv_used_bytes == 0
