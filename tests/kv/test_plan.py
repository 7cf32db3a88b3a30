"""Plans: layouts, dtypes, ranks, prefill work, and the names of the JSON."""

from __future__ import annotations

import json

import pytest

from harness.errors import ModelConfigError, OptionError
from harness.kv.engine import EngineOptions
from harness.kv.flops import attended_pairs
from harness.kv.plan_types import PlanOptions
from harness.kv.text import render, render_comparison
from tests.kv.models import GIB, TINY, planned, spec, tiny


def test_the_tiny_demo_as_a_real_vllm_ran_it() -> None:
    # 16 MiB / (128 x 1,024 B) = 128 blocks; 127 // 5 = 25 ran at once, 7 of 32 waited
    result = planned("llama-2-7b", tiny(prompt_tokens=512, output_tokens=128), **TINY)
    assert result.kv_bytes_per_token == 1024
    assert (result.num_blocks, result.safe_concurrency) == (128, 25)
    assert result.pool_tokens == 16_384
    assert result.max_concurrency == 8.0
    assert "requests = floor(127 / 5) = 25" in result.derivation


def test_the_seed_figure_prints_two_gib() -> None:
    result = planned("llama-mha-32x32", PlanOptions(context=4096))
    assert result.needed_bytes == 2_147_483_648
    assert "2,147,483,648 B = 2.00 GiB" in render(result)
    quarter = planned("llama-mha-32x32", PlanOptions(context=4096), num_key_value_heads=8)
    assert quarter.needed_bytes == 2_147_483_648 // 4
    assert planned("llama-mha-32x32", PlanOptions(context=4096, batch=3)).needed_bytes == 3 * 2**31


def test_the_scheduler_limit_counts_when_it_was_asked_for() -> None:
    engine = EngineOptions(device="cpu", max_model_len=2048, max_num_seqs=16)
    result = planned("llama-2-7b", tiny(engine=engine, context=640), **TINY)
    assert result.safe_concurrency == 16
    # the rows: 127 blocks hold 127, 63, 31, 15 and 7 requests; 16 may run
    rows = [(row.requests, row.memory_requests, row.limit) for row in result.table]
    assert rows == [
        (16, 127, "max_num_seqs"),
        (16, 63, "max_num_seqs"),
        (16, 31, "max_num_seqs"),
        (15, 15, "kv_memory"),
        (7, 7, "kv_memory"),
        (0, 0, "max_model_len"),
        (0, 0, "max_model_len"),
    ]
    assert {row.layout: row.requests for row in result.layouts}["contiguous-exact"] == 16
    big = planned("llama-2-7b", tiny(kv_memory_bytes=GIB, context=640), **TINY)
    # 8,191 // 5 = 1,638 fit; vLLM's default would run 128 of them, and the plan says so
    assert big.safe_concurrency == 1638
    assert any("max_num_seqs 128" in text for text in big.warnings)


def test_a_pool_below_one_request_is_said() -> None:
    result = planned("llama-2-7b", tiny(kv_memory_bytes=2**20, context=640), **TINY)
    assert result.safe_concurrency == 1
    assert any("would refuse to start" in text for text in result.warnings)


def test_heads_compared() -> None:
    # 32 query heads and 8 KV heads: 4 times with all heads, an eighth with one
    result = planned("mixtral-8x7b")
    figures = {variant.name: variant.kv_bytes_per_token for variant in result.comparison}
    assert figures == {
        "MHA (32 KV heads)": 524_288,
        "this model (8 KV heads)": 131_072,
        "MQA (1 KV head)": 16_384,
    }
    assert [variant.name for variant in planned("deepseek-v3").comparison] == ["this model"]


@pytest.mark.parametrize(
    ("tp", "own", "mha", "mqa"),
    [
        # 2 x 32 layers x 128 x 2 B = 16,384 B per KV head: 8 of 8 heads, 32 of 32, 1
        (1, 8, 32, 1),
        # on one of two ranks 4 and 16, and MQA's only head again
        (2, 4, 16, 1),
        # on one of sixteen every KV head is kept twice: 1, 2 and 1
        (16, 1, 2, 1),
    ],
)
def test_heads_compared_on_a_rank(tp: int, own: int, mha: int, mqa: int) -> None:
    result = planned("mixtral-8x7b", PlanOptions(engine=EngineOptions(tp=tp)))
    assert [variant.kv_bytes_per_token // 16_384 for variant in result.comparison] == [
        mha,
        own,
        mqa,
    ]
    assert result.kv_bytes_per_token == own * 16_384
    text = render(result)
    for heads in (own, mha):
        assert f"{heads * 16_384:,}" in text
    assert f"{mha / own:.2f} x" in text
    assert f"{mqa / own:.2f} x" in text
    assert ("KV B per token and rank" in text) == (tp > 1)


def test_prefill_attention_grows_with_the_square() -> None:
    # pairs: n (n + 1) / 2, so twice the tokens ask nearly four times the attention
    assert attended_pairs(4, None) == 10
    assert attended_pairs(4, 2) == 1 + 2 + 2 + 2
    rows = {row.tokens: row for row in planned("llama-2-7b").prefill}
    # 32 layers x 2 x 32 heads x 256 x pairs
    assert rows[8192].attention == 32 * 2 * 32 * 256 * (8192 * 8193 // 2)
    assert 3.99 < rows[8192].attention / rows[4096].attention < 4.0
    # matrices: 2 x (parameters without embedding and output), the output once
    inside = 6_738_149_376 - 2 * 32000 * 4096
    assert rows[4096].matrices == 2 * inside * 4096 + 2 * 32000 * 4096
    windowed = {row.tokens: row for row in planned("mistral-7b-v0.1").prefill}
    pairs = 4096 * 4097 // 2 + 4096 * 4096
    assert windowed[8192].attention == 32 * 2 * 32 * 256 * pairs


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        # per layer and token: 8 KV heads x (128 + 128)
        ("fp16", 2048 * 2 * 32),
        ("fp32", 2048 * 4 * 32),
        ("fp8", 2048 * 32),
        # one 4-byte scale per head for K and one for V
        ("int8", 8 * (256 + 8) * 32),
        ("int4", 8 * (128 + 8) * 32),
    ],
)
def test_kv_dtypes(dtype: str, expected: int) -> None:
    result = planned("mixtral-8x7b", PlanOptions(kv_dtype=dtype))
    assert result.kv_bytes_per_token == expected


def test_fp8_of_latents() -> None:
    # 512 B + 4 scales x 4 B + 64 x 2 B = 656 B per layer
    result = planned("deepseek-v3", PlanOptions(kv_dtype="fp8_ds_mla"))
    assert result.kv_bytes_per_token == 61 * 656
    for name, dtype in (("llama-2-7b", "fp8_ds_mla"), ("deepseek-v3", "int4")):
        with pytest.raises(OptionError, match="--kv-dtype"):
            planned(name, PlanOptions(kv_dtype=dtype))


def test_tensor_parallel_replication_is_shown() -> None:
    engine = EngineOptions(tp=16)
    result = planned("llama-3-70b", PlanOptions(engine=engine))
    # 8 KV heads on 16 ranks: one each, every head twice
    assert result.kv_bytes_per_token == 327_680 // 8
    assert any("each kept on 2 ranks" in step for step in result.derivation)
    latent = planned("deepseek-v3", PlanOptions(engine=EngineOptions(tp=8)))
    assert latent.kv_bytes_per_token == 70_272
    assert any("the same on every rank" in step for step in latent.derivation)


def test_vllm_runs_a_float32_config_in_16_bit() -> None:
    result = planned("gpt2")
    assert (result.dtype, result.kv_bytes_per_token) == ("bfloat16", 36_864)
    assert any("bfloat16" in text for text in result.warnings)
    assert planned("gpt2", PlanOptions(dtype="float32")).kv_bytes_per_token == 2 * 36_864
    with pytest.raises(OptionError, match="--dtype"):
        planned("gpt2", PlanOptions(dtype="fp8"))


def test_a_plan_from_lengths() -> None:
    lengths = ((512, 128), (1024, 128), (5000, 10))
    result = planned("llama-2-7b", tiny(lengths=lengths), **TINY)
    # 5 or 9 blocks; the third is beyond the context: left out, and said
    assert result.safe_concurrency is not None
    assert 127 // 9 <= result.safe_concurrency < 127 / 7
    assert any("1 of 3 lengths" in text for text in result.warnings)
    exact_layout = planned("llama-2-7b", tiny(lengths=lengths, layout="contiguous-exact"), **TINY)
    assert exact_layout.safe_concurrency is not None
    with pytest.raises(OptionError, match="--lengths"):
        planned("llama-2-7b", tiny(lengths=((4000, 1),)), **TINY)


def test_json_names_and_types() -> None:
    result = planned("gemma-2-9b", PlanOptions(kv_memory_bytes=4 * GIB)).to_json()
    whole = json.loads(json.dumps(result))
    assert {
        "model",
        "architecture",
        "status",
        "kv_bytes_per_token",
        "kv_bytes_per_token_full",
        "fixed_bytes_per_request",
        "layout",
        "table",
        "pool_tokens",
        "max_concurrency",
        "safe_concurrency",
        "derivation",
        "warnings",
    } <= set(whole)
    assert whole["status"] == "known"
    assert whole["layout"] == "paged"
    assert [row["tokens"] for row in whole["table"]] == [128, 256, 512, 1024, 2048, 4096, 8192]
    rows = {"tokens", "needed_bytes", "reserved_bytes", "requests", "memory_requests", "limit"}
    assert set(whole["table"][0]) == rows
    assert all(isinstance(row["needed_bytes"], int) for row in whole["table"])
    assert whole["kv_bytes_per_token"] == 344_064
    assert whole["kv_bytes_per_token_full"] == 172_032
    # without a budget the answer is absent, not 0
    unasked = planned("gemma-2-9b").to_json()
    assert unasked["safe_concurrency"] is None
    assert unasked["table"][0]["requests"] is None
    assert unasked["table"][0]["limit"] is None
    assert unasked["lengths"] is None


def test_the_context_doubles_the_cache() -> None:
    table = {row.tokens: row.needed_bytes for row in planned("llama-2-7b").table}
    assert table[8192] == 2 * table[4096]


def test_a_request_beyond_the_context() -> None:
    with pytest.raises(OptionError, match="--context: 5000 is not valid; expected 1 to 4,096"):
        planned("llama-2-7b", PlanOptions(context=5000))
    rows = {row.tokens: row.requests for row in planned("llama-2-7b", tiny(), **TINY).table}
    assert rows[2048] == 7
    assert rows[4096] == 0


def test_a_config_without_a_length_takes_the_asked_context() -> None:
    result = planned("unknown-plain", PlanOptions(context=5000), max_position_embeddings=None)
    assert result.engine.max_model_len == 5000


def test_batch_that_does_not_fit_is_said() -> None:
    result = planned("llama-2-7b", tiny(context=640, batch=26), **TINY)
    assert "--batch 26 does not fit: 25 requests do" in result.warnings


@pytest.mark.parametrize(
    "name", ["jamba-v0.1", "whisper-large-v3-turbo", "mamba-2.8b", "gemma-3-4b"]
)
def test_every_kind_renders(name: str) -> None:
    text = render(planned(name, PlanOptions(kv_memory_bytes=8 * GIB)), all_layouts=True)
    assert "safe concurrency" in text
    assert "contiguous-pow2" in text


def test_models_side_by_side() -> None:
    text = render_comparison([planned("llama-2-7b"), planned("deepseek-v3")])
    assert "524,288" in text
    assert "70,272" in text


def test_recurrent_states_on_the_cpu_are_32_bit() -> None:
    # Granite 4: 36 layers x (convolution 3,328 x 3 x 2 B + recurrent 393,216 x 4 B)
    cpu = PlanOptions(engine=EngineOptions(device="cpu"))
    assert planned("granite-4-h-tiny", cpu).fixed_bytes_per_request == 36 * (19_968 + 1_572_864)
    engine = EngineOptions(device="cpu", state_dtype="bfloat16")
    asked = planned("granite-4-h-tiny", PlanOptions(engine=engine))
    assert asked.fixed_bytes_per_request == 36 * (19_968 + 786_432)
    with pytest.raises(OptionError, match="--mamba-ssm-cache-dtype"):
        planned("granite-4-h-tiny", PlanOptions(engine=EngineOptions(state_dtype="fp8")))


def test_fields_that_only_the_weights_need_do_not_stop_a_plan() -> None:
    odd = planned("unknown-plain", num_experts=[8, 8])
    assert odd.kv_bytes_per_token == 10_240
    assert odd.parameters is None
    assert odd.prefill == ()
    assert any("num_experts" in text for text in odd.warnings)
    with pytest.raises(OptionError, match="--weights"):
        planned("unknown-plain", PlanOptions(vram_bytes=GIB), num_experts=[8, 8])


def test_a_model_without_layers_is_no_model() -> None:
    with pytest.raises(ModelConfigError, match="no model config"):
        planned("llama-2-7b", num_hidden_layers=None, hidden_size=None, num_attention_heads=None)
    assert spec("llama-2-7b").heads == 32
