"""KV arithmetic that went wrong in practice: each case by its id, with its arithmetic."""

from __future__ import annotations

import pytest

from harness.errors import ModelConfigError
from harness.kv.bytes import (
    fixed_bytes_per_request,
    kv_bytes_per_token,
    kv_bytes_per_token_full,
    needed_bytes,
)
from harness.kv.engine import EngineOptions, resolve_engine
from harness.kv.families.latent import expanded_elements
from harness.kv.layouts import costs
from harness.kv.plan_types import PlanOptions
from harness.kv.spec import read_spec, text_config
from tests.kv.models import GIB, config, planned, spec


def per_token(name: str, **changes: object) -> int:
    return kv_bytes_per_token(spec(name, **changes))


def test_c58_explicit_head_dim_of_qwen3_32b() -> None:
    # 2 x 64 layers x 8 x 128 x 2 B; hidden / heads = 5120 / 64 = 80 would give 163,840
    assert per_token("qwen3-32b") == 2 * 64 * 8 * 128 * 2 == 262_144


@pytest.mark.parametrize("name", ["mistral-nemo-12b", "mistral-small-24b"])
def test_c59_explicit_head_dim_of_mistral(name: str) -> None:
    # 2 x 40 x 8 x 128 x 2 B; 5120 / 32 = 160 would give 204,800
    assert per_token(name) == 2 * 40 * 8 * 128 * 2 == 163_840


def test_c61_head_dim_of_gemma_7b() -> None:
    # 2 x 28 x 16 x 256 x 2 B; 3072 / 16 = 192 would give 344,064
    assert per_token("gemma-7b") == 2 * 28 * 16 * 256 * 2 == 458_752


def test_c62_null_head_dim_and_other_names() -> None:
    # Mixtral: null -> 4096 / 32 = 128; 2 x 32 x 8 x 128 x 2 B
    assert per_token("mixtral-8x7b") == 131_072
    # MiniMax: null -> 6144 / 48 = 128; one attention layer of eight: 2 x 8 x 128 x 2 B
    assert per_token("minimax-text-01") == 4_096
    # T5's d_kv: 2 x 12 x 12 x 64 x 2 B
    assert per_token("t5-base") == 36_864
    # Zamba2's attention_head_dim: 6 hybrid layers: 2 x 6 x 32 x 128 x 2 B
    assert per_token("zamba2-1.2b") == 98_304
    plamo = dict(config("unknown-plain"), hidden_size_per_head=32)
    # 2 x 10 x 4 x 32 x 2 B
    assert kv_bytes_per_token(read_spec(plamo)) == 5_120


def test_c62_zero_heads_are_refused_not_divided_by() -> None:
    with pytest.raises(ModelConfigError, match="num_attention_heads is 0"):
        spec("mixtral-8x7b", num_attention_heads=0)


def test_c63_absent_or_null_kv_heads() -> None:
    # 2 x 32 x 32 x 128 x 2 B
    assert per_token("llama-2-7b") == 524_288
    assert per_token("llama-2-7b", num_key_value_heads=None) == 524_288


def test_c64_falcon() -> None:
    # 7B is multi-query: 2 x 32 x 1 x 64 x 2 B, even when a class wrote 71 KV heads
    assert per_token("falcon-7b") == 8_192
    assert per_token("falcon-7b", num_kv_heads=71) == 8_192
    # without the flag: 71 heads
    assert per_token("falcon-7b", multi_query=False) == 8_192 * 71 == 581_632
    # 40B: the new architecture ignores the flag: 2 x 60 x 8 x 64 x 2 B
    assert per_token("falcon-40b") == 122_880
    assert per_token("falcon-40b-rw") == 122_880
    # the flag is younger than the 40B model: a width of 8192 means it under the first name
    first = config("falcon-40b-rw")
    del first["new_decoder_architecture"]
    assert kv_bytes_per_token(read_spec(first)) == 2 * 60 * 8 * 64 * 2 == 122_880
    # 8 stated KV heads count more than a multi_query that only the default sets
    bare = config("falcon-40b")
    del bare["new_decoder_architecture"], bare["multi_query"]
    assert kv_bytes_per_token(read_spec(bare)) == 122_880
    # but 71 of 71 is what the config class writes by itself: 2 x 32 x 1 x 64 x 2 B
    assert per_token("falcon-7b", multi_query=None, num_kv_heads=71) == 8_192


def test_c65_gpt2_and_gpt_bigcode() -> None:
    # 2 x 12 x 12 x 64 x 2 B = 36,864; x 8,192 tokens
    gpt2 = spec("gpt2", torch_dtype="float16")
    assert kv_bytes_per_token(gpt2) == 36_864
    assert needed_bytes(gpt2, 8192) == 301_989_888
    # santacoder keeps one head: 2 x 24 x 1 x 128 x 2 B = 12,288; x 8,192
    santacoder = spec("santacoder")
    assert kv_bytes_per_token(santacoder) == 12_288
    assert needed_bytes(santacoder, 8192) == 100_663_296
    assert per_token("santacoder", multi_query=False) == 12_288 * 16


def test_attention_groups_are_kv_heads() -> None:
    groups = spec("unknown-plain", num_key_value_heads=None, num_attention_groups=1)
    # 2 x 10 x 1 x 64 x 2 B
    assert kv_bytes_per_token(groups) == 2_560


def test_c66_mpt_dbrx_bloom() -> None:
    assert per_token("mpt-7b") == 2 * 32 * 32 * 128 * 2 == 524_288
    grouped = {"attn_config": {"kv_n_heads": 8}}
    assert per_token("mpt-7b", **grouped) == 524_288 // 4
    assert per_token("mpt-7b", attn_config={"attn_type": "multiquery_attention"}) == 16_384
    # DBRX: 2 x 40 x 8 x 128 x 2 B
    assert per_token("dbrx") == 163_840
    assert per_token("bloom-7b1") == 2 * 30 * 32 * 128 * 2 == 491_520
    old = {"model_type": "bloom", "n_layer": 30, "n_embed": 4096, "num_attention_heads": 32}
    assert kv_bytes_per_token(read_spec(old | {"torch_dtype": "float16"})) == 491_520


def test_c68_whisper_counts_the_decoder() -> None:
    turbo = spec("whisper-large-v3-turbo")
    # self: 2 x 4 decoder layers x 20 x 64 x 2 B (32 encoder layers would give 163,840)
    assert kv_bytes_per_token(turbo) == 20_480
    # cross: the same per position, over 1,500 frames
    assert fixed_bytes_per_request(turbo) == 20_480 * 1500 == 30_720_000
    # BART: 2 x 12 x 16 x 64 x 2 B, and its encoder's 1,024 positions
    bart = spec("bart-large")
    assert kv_bytes_per_token(bart) == 49_152
    assert fixed_bytes_per_request(bart) == 49_152 * 1024


def test_c69_latent_attention() -> None:
    # 61 x (512 + 64) x 2 B: no factor 2 for K and V, and no heads
    assert per_token("deepseek-v3") == 70_272
    # what engines keep that expand before they cache: 61 x 128 x (128 + 64 + 128) x 2 B
    expanded = expanded_elements(text_config(config("deepseek-v3")).fields)
    assert 61 * expanded * 2 == 4_997_120
    assert any("4,997,120 B" in text for text in planned("deepseek-v3").warnings)


def test_c72_kv_dtype_is_independent_of_the_weights() -> None:
    # 2 x 48 x 4 x 128 x 1 B = 49,152 B; 230,528 tokens = 10.55 GiB, 221,000 = 10.117 GiB
    fp8 = kv_bytes_per_token(spec("fp8-48-layers"), "fp8")
    assert fp8 == 49_152
    assert round(230_528 * fp8 / GIB, 2) == 10.55
    assert round(221_000 * fp8 / GIB, 3) == 10.117
    # Qwen2.5-7B-Int8 still caches 16 bit: 2 x 28 x 4 x 128 x 2 B; 3,072 tokens = 0.164 GiB
    seven = spec("qwen2.5-7b", quantization_config={"quant_method": "gptq", "bits": 8})
    assert kv_bytes_per_token(seven) == 57_344
    assert round(needed_bytes(seven, 3072) / GIB, 3) == 0.164


def test_c73_sliding_layers_stop_at_their_window() -> None:
    gemma = spec("gemma-2-9b")
    # per layer and token 2 x 8 x 256 x 2 = 8,192 B; 42 x 8,192 tokens = 2.625 GiB without
    # windows, 21 x 8,192 + 21 x 4,096 tokens = 1.96875 GiB with them
    assert kv_bytes_per_token(gemma) * 8192 / GIB == 2.625
    assert needed_bytes(gemma, 8192) / GIB == 1.96875
    # gpt-oss-20b, 32 requests of 8,192: 2,048 B per layer and token,
    # 32 x (12 x 8,192 + 12 x 128) x 2,048 = 6.09 GiB, 12.00 GiB with all layers full
    oss = spec("gpt-oss-20b")
    assert round(32 * needed_bytes(oss, 8192) / GIB, 2) == 6.09
    assert 32 * 8192 * kv_bytes_per_token(oss) / GIB == 12.0


def test_c74_an_engine_may_reserve_full_pages_for_sliding_layers() -> None:
    # 78,384 tokens in 5.38 GiB = 73,728 B per token = all 36 layers x 2,048 B
    oss = spec("gpt-oss-120b")
    assert kv_bytes_per_token(oss) == 73_728
    assert round(78_384 * 73_728 / GIB, 2) == 5.38
    engine = resolve_engine(oss, EngineOptions(hybrid_manager=False))
    price = costs(oss, "auto", engine)
    # reserved without the hybrid manager: whole blocks of all layers; needed: 18 full layers
    # x 8,192 and 18 x 128 tokens
    assert price.reserved("paged", 8192) == 8192 * 73_728
    assert price.needed(8192) == 18 * 2048 * (8192 + 128)


@pytest.mark.parametrize(
    ("name", "attention_layers", "kv_heads", "head_dim", "expected"),
    [
        ("qwen3.8-27b", 16, 4, 256, 65_536),
        ("qwen3.6-35b-a3b", 10, 2, 256, 20_480),
        ("qwen3-next-80b", 12, 2, 256, 24_576),
        ("jamba-v0.1", 4, 8, 128, 16_384),
        ("nemotron-h-8b", 4, 8, 128, 16_384),
        ("granite-4-h-tiny", 4, 4, 128, 8_192),
    ],
)
def test_c75_only_attention_layers_grow(
    name: str, attention_layers: int, kv_heads: int, head_dim: int, expected: int
) -> None:
    assert 2 * attention_layers * kv_heads * head_dim * 2 == expected
    model = spec(name)
    assert kv_bytes_per_token(model) == kv_bytes_per_token_full(model) == expected
    assert fixed_bytes_per_request(model) > 0


def test_c75_constant_states_by_hand() -> None:
    # Jamba: 28 Mamba layers x (8,192 x 3 + 8,192 x 16) x 2 B
    assert fixed_bytes_per_request(spec("jamba-v0.1")) == 28 * 8192 * 19 * 2
    # Qwen3-Next: 36 layers x ((2 x 16 x 128 + 32 x 128) x 3 + 32 x 128 x 128) x 2 B
    assert fixed_bytes_per_request(spec("qwen3-next-80b")) == 36 * (8192 * 3 + 524_288) * 2
    # Granite 4: 36 layers x ((48 x 64 + 2 x 128) x 3 + 48 x 64 x 128) x 2 B
    assert fixed_bytes_per_request(spec("granite-4-h-tiny")) == 36 * (3328 * 3 + 393_216) * 2
    # Nemotron-H keeps the recurrent part in 32 bit: 24 x ((8,192 + 2 x 8 x 128) x 3 x 2 B
    # + 8,192 x 128 x 4 B)
    nemotron = fixed_bytes_per_request(spec("nemotron-h-8b"))
    assert nemotron == 24 * (10_240 * 3 * 2 + 1_048_576 * 4)


def test_c77_layers_that_share_a_cache() -> None:
    shared = spec("gemma-3n-e4b")
    # 2 x 20 own layers x 2 x 256 x 2 B (35 layers would give 71,680); beyond the window the
    # 4 full ones among them: 2 x 4 x 2 x 256 x 2 B
    assert kv_bytes_per_token(shared) == 40_960
    assert kv_bytes_per_token_full(shared) == 8_192


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 2 x 34 x 4 x 256 x 2 B: heads come from the family's defaults
        ("gemma-3-4b", 139_264),
        # 2 x 48 x 8 x 128 x 2 B
        ("llama-4-scout", 196_608),
        # 2 x 32 x 32 x 128 x 2 B: nothing but a model type and a length is stated
        ("llava-1.5-7b", 524_288),
        # top-level fields beside a vision_config: 2 x 28 x 2 x 128 x 2 B
        ("qwen2-vl", 28_672),
    ],
)
def test_c78_multimodal_configs_nest_the_language_model(name: str, expected: int) -> None:
    assert per_token(name) == expected


def test_c80_vllm_log_lines() -> None:
    # "maximum concurrency" is tokens in all blocks / max_model_len
    assert round(1952 * 16 / 20_000, 2) == 1.56
    assert round(2_042_016 / 2048, 2) == 997.08
    # the same through a plan: 2,042,016 / 16 = 127,626 blocks of 16 x 524,288 B
    blocks = 2_042_016 // 16
    result = planned(
        "llama-2-7b",
        PlanOptions(
            engine=EngineOptions(max_model_len=2048),
            kv_memory_bytes=blocks * 16 * 524_288,
            prompt_tokens=900,
            output_tokens=100,
        ),
    )
    assert result.num_blocks == blocks == 127_626
    assert result.max_concurrency is not None
    assert round(result.max_concurrency, 2) == 997.08
    assert result.pool_tokens == 2_042_016
    # 1,000 tokens take 63 blocks: 127,625 usable / 63 = 2,025.8
    assert result.safe_concurrency == 2025


def test_c81_two_parameters_describe_a_hybrid() -> None:
    # needed = constant + per token x tokens, where no window interferes
    model = spec("jamba-v0.1")
    constant, slope = fixed_bytes_per_request(model), kv_bytes_per_token(model)
    for tokens in (1, 1000, 100_000):
        assert needed_bytes(model, tokens) == constant + slope * tokens


def test_c83_units_and_llama_3_70b() -> None:
    # 327,680 B x 32,768 = 10,737,418,240 B = 10.0 GiB = 10.74 GB
    total = per_token("llama-3-70b") * 32_768
    assert total == 10_737_418_240
    assert total / GIB == 10.0
    assert round(total / 1e9, 2) == 10.74


def test_c84_a_budget_under_windows() -> None:
    # the linear rule: 1.96875 GiB / 344,064 B = 6,144 tokens; with windows 8,192 fit
    gemma = spec("gemma-2-9b")
    budget = int(1.96875 * GIB)
    assert budget // kv_bytes_per_token(gemma) == 6144
    assert needed_bytes(gemma, 8192) == budget


@pytest.mark.parametrize(
    ("name", "expected"),
    [("deepseek-v3", 70_272), ("qwen2.5-72b", 327_680), ("llama-3.1-405b", 516_096)],
)
def test_published_figures(name: str, expected: int) -> None:
    assert per_token(name) == expected
