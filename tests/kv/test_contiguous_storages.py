"""Our arithmetic against the contiguous server's real tensors, to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from harness.kv.bytes import kv_bytes_per_token
from harness.kv.spec import read_spec
from tests.kv.models import config

SHAPES = {
    "gqa": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "mha": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "mqa": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "explicit head_dim": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48},
}
LENGTHS = [[7], [5, 5], [3, 20, 9, 1], [32] * 8]
MAX_MODEL_LEN = 64


def static_bytes(rows: int, max_model_len: int, bytes_per_token: int) -> int:
    """Reserved and used alike: whole slots of the occupied rows."""
    return rows * max_model_len * bytes_per_token


def dynamic_reserved_bytes(promises: Sequence[int], bytes_per_token: int) -> int:
    """Running requests x longest promise, as admission charges them."""
    return len(promises) * max(promises, default=0) * bytes_per_token


def dynamic_used_bytes(lengths: Sequence[int], bytes_per_token: int) -> int:
    """Storages of the batch: every row as long as the longest."""
    return len(lengths) * max(lengths, default=0) * bytes_per_token


def small(shape: str, dtype: str) -> dict[str, Any]:
    sizes = {"num_hidden_layers": 3, "hidden_size": 128, "intermediate_size": 64}
    raw = config("llama-2-7b", **sizes, vocab_size=64, torch_dtype=dtype)
    return raw | SHAPES[shape]


def small_model(shape: str, dtype: str) -> Any:
    import torch
    import transformers

    raw = transformers.LlamaConfig(**small(shape, dtype))
    build: Any = transformers.LlamaForCausalLM
    return build(raw).to(getattr(torch, dtype)).eval()


def runner(model: Any, policy: str) -> Any:
    import torch

    from servers.contiguous.cache_dynamic import DynamicBatchCache
    from servers.contiguous.cache_static import StaticBatchCache
    from servers.contiguous.layout import probe_layout
    from servers.contiguous.runner import ModelRunner

    cpu = torch.device("cpu")
    layout = probe_layout(model, cpu)
    cache = (
        StaticBatchCache(layout, slots=8, max_model_len=MAX_MODEL_LEN)
        if policy == "static"
        else DynamicBatchCache(layout)
    )
    return ModelRunner(model, cache, cpu)


def fill(engine: Any, lengths: list[int]) -> None:
    import torch

    with torch.inference_mode():
        for length in lengths:
            engine.cache.start_prefill()
            engine.prefill([1] * length)
            engine.cache.join()


def decode(engine: Any, rows: int) -> None:
    import torch

    with torch.inference_mode():
        engine.decode([1] * rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_storages_equal_the_prediction(shape: str, dtype: str) -> None:
    per_token = kv_bytes_per_token(read_spec(small(shape, dtype)))
    model = small_model(shape, dtype)
    for lengths in LENGTHS:
        static, dynamic = runner(model, "static"), runner(model, "dynamic")
        for engine in (static, dynamic):
            fill(engine, lengths)
        rows = len(lengths)
        assert static.cache.pool_bytes == static_bytes(8, MAX_MODEL_LEN, per_token)
        assert static.cache.used_bytes() == static_bytes(rows, MAX_MODEL_LEN, per_token)
        assert dynamic.cache.used_bytes() == dynamic_used_bytes(lengths, per_token)
        # one more token in every row: slots stay, the padded batch grows by a column
        decode(static, rows)
        decode(dynamic, rows)
        longer = [length + 1 for length in lengths]
        assert static.cache.used_bytes() == static_bytes(rows, MAX_MODEL_LEN, per_token)
        assert dynamic.cache.used_bytes() == dynamic_used_bytes(longer, per_token)
        # the longest row leaves: the batch is trimmed to the next longest
        if rows > 1:
            gone = longer.index(max(longer))
            dynamic.cache.leave([gone])
            longer.pop(gone)
            assert dynamic.cache.used_bytes() == dynamic_used_bytes(longer, per_token)


def test_what_the_policies_set_aside() -> None:
    from servers.contiguous.admission import DynamicPolicy, Promise, StaticPolicy

    per_token, tokens = 1024, [640, 640, 1000]
    promises = [Promise(number - 128, 128) for number in tokens]
    slot = MAX_MODEL_LEN * per_token
    static = StaticPolicy(kv_slots=8, max_num_seqs=8, slot_bytes=slot)
    assert static.reserved_bytes(promises) == static_bytes(3, MAX_MODEL_LEN, per_token)
    dynamic = DynamicPolicy(budget_bytes=16 * 2**20, bytes_per_token=per_token, max_num_seqs=64)
    assert dynamic.reserved_bytes(promises) == dynamic_reserved_bytes(tokens, per_token)


def test_an_empty_batch_takes_nothing() -> None:
    assert dynamic_used_bytes([], 1024) == dynamic_reserved_bytes([], 1024) == 0
