"""Bytes per token of plain models: the arithmetic stands beside every expectation."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import ModelConfigError, OptionError
from harness.kv.bytes import kv_bytes_per_token
from harness.kv.spec import read_spec


def llama(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "torch_dtype": "float16",
        "max_position_embeddings": 4096,
    }
    return config | changes


def test_the_seed_figure_two_gib() -> None:
    # 2 x 32 layers x 32 heads x 128 x 2 B = 524,288 B; x 4,096 tokens = 2,147,483,648 B
    spec = read_spec(llama())
    assert kv_bytes_per_token(spec) == 524_288
    assert kv_bytes_per_token(spec) * 4096 == 2_147_483_648 == 2 * 2**30


def test_eight_kv_heads_cost_a_quarter() -> None:
    spec = read_spec(llama(num_key_value_heads=8))
    assert kv_bytes_per_token(spec) * 4096 == 2_147_483_648 // 4


def test_the_tiny_model() -> None:
    # 4 layers x 2 KV heads x 32 x 2 x 2 B = 1,024 B
    tiny = llama(
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        torch_dtype="bfloat16",
    )
    assert kv_bytes_per_token(read_spec(tiny)) == 1024


def test_float32_costs_twice_and_fp8_half_of_float16() -> None:
    spec = read_spec(llama())
    assert kv_bytes_per_token(spec, "float32") == 2 * 524_288
    assert kv_bytes_per_token(spec, "fp8") == 524_288 // 2


def test_c62_null_head_dim_falls_back_to_hidden_over_heads() -> None:
    assert kv_bytes_per_token(read_spec(llama(head_dim=None))) == 524_288


def test_c63_null_kv_heads_mean_all_heads() -> None:
    assert kv_bytes_per_token(read_spec(llama(num_key_value_heads=None))) == 524_288


def test_tensor_parallel_ranks_hold_at_least_one_head() -> None:
    # 8 KV heads: tp 2 -> 4 each; tp 16 -> 1 each, replicated twice
    spec = read_spec(llama(num_key_value_heads=8))
    whole = kv_bytes_per_token(spec)
    assert kv_bytes_per_token(spec, tp=2) == whole // 2
    assert kv_bytes_per_token(spec, tp=16) == whole // 8


@pytest.mark.parametrize("tp", [0, 3, 64])
def test_an_impossible_split_is_an_error(tp: int) -> None:
    with pytest.raises(OptionError, match="--tp"):
        kv_bytes_per_token(read_spec(llama()), tp=tp)


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(OptionError, match="fp17"):
        kv_bytes_per_token(read_spec(llama()), "fp17")
    with pytest.raises(OptionError, match="the config states none"):
        kv_bytes_per_token(read_spec(llama(torch_dtype=None)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": "32"}, "num_attention_heads is '32'"),
        ({"num_hidden_layers": None}, "the number of layers is missing"),
        ({"n_head": 16}, "contradict each other: num_attention_heads is 32 but n_head is 16"),
        ({"num_key_value_heads": 5}, "cannot share 5 KV heads"),
        ({"hidden_size": 4097}, "hidden size 4097 is no multiple"),
        ({"torch_dtype": 16}, "torch_dtype is 16"),
    ],
)
def test_a_wrong_config_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelConfigError, match=words):
        read_spec(llama(**changes))
