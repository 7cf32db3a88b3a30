"""Rules of single families, beyond the field cases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness.errors import ModelConfigError
from harness.kv.bytes import kv_bytes_per_token
from harness.kv.spec import read_spec
from tests.kv.models import CONFIGS, spec


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_config_reads_or_is_refused_by_name(path: Any) -> None:
    if path.stem == "unknown-sparse":
        with pytest.raises(ModelConfigError, match="index_topk"):
            spec(path.stem)
        return
    model = spec(path.stem)
    assert model.status == ("assumed" if path.stem == "unknown-plain" else "known")


def kinds(name: str, **changes: object) -> Counter[str]:
    return Counter(layer.kind for layer in spec(name, **changes).layers)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # 2 x 28 layers x 2 groups x 128 x 2 B
        ("chatglm3-6b", 28_672),
        # 2 x 40 x 64 x 128 x 2 B
        ("command-r", 1_310_720),
        # 27 x (512 + 64) x 2 B
        ("deepseek-v2-lite", 31_104),
        # 2 x 32 x 32 x 128 x 2 B
        ("opt-6.7b", 524_288),
        # 2 x 44 x 64 x 96 x 2 B
        ("gpt-neox-20b", 1_081_344),
        # 2 x 28 x 16 x 256 x 2 B
        ("gpt-j-6b", 458_752),
        # 2 x 32 x 32 x 80 x 2 B
        ("stablelm-3b", 327_680),
        ("phi-2", 327_680),
        # 2 x 48 x 4 x 128 x 2 B
        ("qwen3-30b-a3b", 98_304),
        # 2 x 32 x 32 x 96 x 2 B
        ("phi-3-mini-4k", 393_216),
        # 2 x 10 x 4 x 64 x 2 B
        ("unknown-plain", 10_240),
    ],
)
def test_bytes_per_token(name: str, expected: int) -> None:
    assert kv_bytes_per_token(spec(name)) == expected


def test_jamba_by_list_instead_of_period() -> None:
    types = ["mamba"] * 31 + ["attention"]
    assert kinds("jamba-v0.1", layers_block_type=types) == {"state": 31, "full": 1}


def test_falcon_h1_has_both_in_every_layer() -> None:
    model = {
        "model_type": "falcon_h1",
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "mamba_d_ssm": 512,
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_d_state": 16,
        "torch_dtype": "bfloat16",
    }
    layers = Counter(layer.kind for layer in read_spec(model).layers)
    assert layers == {"full": 3, "state": 3}


def test_openelm_lists_heads_per_layer() -> None:
    model = {
        "model_type": "openelm",
        "num_transformer_layers": 2,
        "num_layers": 2,
        "model_dim": 256,
        "num_heads": 4,
        "num_kv_heads": [1, 2],
        "head_dim": 64,
        "torch_dtype": "float16",
    }
    # (1 + 2) x 2 x 64 x 2 B
    assert kv_bytes_per_token(read_spec(model)) == 768
    for none in ([0, 0], []):
        with pytest.raises(ModelConfigError, match=r"num_kv_heads is .*expected 1 or more"):
            read_spec(model | {"num_kv_heads": none})


def test_lfm2_and_bamba_by_index() -> None:
    lfm2 = {
        "model_type": "lfm2",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "full_attn_idxs": [2],
        "torch_dtype": "float16",
    }
    assert Counter(layer.kind for layer in read_spec(lfm2).layers) == {"state": 3, "full": 1}
    bamba = lfm2 | {
        "model_type": "bamba",
        "attn_layer_indices": [0, 3],
        "mamba_n_heads": 8,
        "mamba_d_head": "auto",
        "mamba_d_state": 16,
    }
    assert Counter(layer.kind for layer in read_spec(bamba).layers) == {"full": 2, "state": 2}


def test_the_longest_context() -> None:
    assert spec("llama-3-70b").max_positions == 131_072
    # yarn's stated length is scaled already
    assert spec("deepseek-v3").max_positions == 163_840
    # Command R states its own limit beside the positions
    assert spec("command-r").max_positions == 131_072
    assert spec("whisper-large-v3-turbo").max_positions == 448
    linear = {"rope_scaling": {"type": "linear", "factor": 4.0}}
    assert spec("llama-2-7b", **linear).max_positions == 16_384
    long_rope = {
        "rope_scaling": {"type": "longrope"},
        "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131_072,
    }
    assert spec("phi-3-mini-4k", **long_rope).max_positions == 4096


def length(name: str, **changes: object) -> int | None:
    return spec(name, **changes).max_positions


def test_rope_scales_the_longest_context_as_in_vllm() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    gemma = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "max_position_embeddings": 131_072,
        "rope_scaling": linear,
    }
    # Gemma 3's length has the factor in it; Llama's does not: 4,096 x 8
    assert read_spec(gemma).max_positions == 131_072
    assert length("llama-2-7b", rope_scaling=linear) == 32_768
    # the newer name, flat and per layer type: 4,096 x 4
    newer = {"rope_type": "linear", "factor": 4.0}
    assert length("llama-2-7b", rope_parameters=newer) == 16_384
    nested = {"full_attention": newer, "sliding_attention": {"rope_type": "default"}}
    assert length("llama-2-7b", rope_parameters=nested) == 16_384
    # every type that is not excluded multiplies, also without a name: 4,096 x 2.5
    for kind in ({}, {"type": "ntk"}, {"type": "dynamic"}, {"rope_type": "default"}):
        assert length("llama-2-7b", rope_scaling={"factor": 2.5, **kind}) == 10_240
    for kind in ({"type": "yarn"}, {"rope_type": "llama3"}, {"type": "deepseek_yarn"}):
        assert length("llama-2-7b", rope_scaling={"factor": 2.5, **kind}) == 4096
    # a null factor is none
    assert length("llama-2-7b", rope_scaling={"type": "linear", "factor": None}) == 4096


@pytest.mark.parametrize(
    "factor", [float("nan"), float("inf"), -1.0, 0, "4", True, [2], 1e300, 10**300]
)
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_rope_factor_that_is_no_factor(factor: object, kind: str) -> None:
    with pytest.raises(ModelConfigError, match=r"rope_scaling: factor is .*above 0") as raised:
        spec("llama-2-7b", rope_scaling={"type": kind, "factor": factor})
    assert len(str(raised.value)) < 160


@pytest.mark.parametrize("value", [1e300, 10**15, 1_000_000_000, 2**20 + 1, 10**300])
@pytest.mark.parametrize(
    "field",
    ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"],
)
def test_absurd_sizes_are_refused_in_one_short_line(field: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=f"{field} is .*at most 1") as raised:
        spec("llama-2-7b", **{field: value})
    assert len(str(raised.value)) < 160 and "\n" not in str(raised.value)


def test_limits_leave_room_for_models_and_for_no_limit() -> None:
    # 2 x 10,000 x 32 x 128 x 2 B
    assert kv_bytes_per_token(spec("llama-2-7b", num_hidden_layers=10_000)) == 163_840_000
    # transformers writes 10**30 for "no limit": it does not shorten the positions
    assert length("llama-2-7b", max_seq_len=1e30) == 4096


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("unknown-plain", {"mamba_d_state": 16}, "cache scheme of its own .mamba_d_state."),
        ("unknown-plain", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("unknown-plain", {"global_head_dim": 512}, "global_head_dim"),
        ("unknown-plain", {"multi_query": True, "num_key_value_heads": None}, "multi_query"),
        ("unknown-plain", {"dense_attention_every_n_layers": 2}, "dense_attention_every_n_l"),
        ("unknown-plain", {"attention_window": [64] * 10}, "attention_window"),
        ("unknown-plain", {"linear_key_head_dim": 128}, "linear_key_head_dim"),
        ("llama-2-7b", {"layer_types": ["full_attention"] * 3}, "3 entries for 32 layers"),
        ("llama-2-7b", {"layer_types": "full_attention"}, "expected a list of texts"),
        ("llama-2-7b", {"layer_types": ["mamba"] * 32}, "layer_types has 'mamba'"),
        ("llama-2-7b", {"layer_types": ["sliding_attention"] * 32}, "sliding_window is not set"),
        ("llama-2-7b", {"kv_lora_rank": 512}, "kv_lora_rank does not belong"),
        ("qwen2.5-7b", {"kv_lora_rank": 512}, "kv_lora_rank does not belong"),
        ("falcon-7b", {"layer_types": ["mamba"] * 32}, "layer_types has 'mamba'"),
        ("llama-2-7b", {"attn_layer_period": 8}, "attn_layer_period does not belong"),
        ("llama-2-7b", {"rope_scaling": {"type": "su", "rope_type": "yarn"}}, "contradict"),
        ("llama-2-7b", {"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ("unknown-plain", {"model_type": "bert"}, "an encoder and keeps no KV cache"),
        ("unknown-plain", {"layer_types": ["retention"] * 10}, "'retention'"),
        ("gemma-2-9b", {"layer_types": ["full_attention"]}, "1 entry for 42 layers"),
        ("gpt-oss-20b", {"sliding_window": None}, "sliding_window is not set"),
        ("gemma-3n-e4b", {"text_config": {"num_hidden_layers": 4}}, "15 of 4 layers"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "MX"}, "'X'"),
        ("granite-4-h-tiny", {"mamba_d_head": "auto", "mamba_n_heads": 7}, "no multiple of 7"),
        ("deepseek-v3", {"kv_lora_rank": 0}, "kv_lora_rank is 0"),
        ("deepseek-v3", {"layer_types": ["sliding_attention"] * 61}, "'sliding_attention'"),
        ("jamba-v0.1", {"layers_block_type": ["mamba"] * 3}, "3 layer types for 32 layers"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M*"}, "2 layer types for 52 layers"),
        ("zamba2-1.2b", {"layers_block_type": ["mamba"]}, "1 layer type for 38 layers"),
        (
            "llama-2-7b",
            {"model_type": "openelm", "num_kv_heads": [0], "head_dim": 8},
            "num_kv_heads is .0.",
        ),
        ("whisper-large-v3-turbo", {"d_model": 1281}, "no multiple of 20 decoder heads"),
        ("qwen2.5-7b", {"use_sliding_window": "yes"}, "expected true or false"),
        ("gemma-2-9b", {"layer_types": "full"}, "expected a list of texts"),
        ("mpt-7b", {"attn_config": []}, "expected an object"),
        ("minimax-text-01", {"attn_type_list": "1"}, "expected a list of numbers"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(
    name: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelConfigError, match=words):
        spec(name, **changes)


def test_a_window_that_nothing_assigns_is_an_upper_bound() -> None:
    notes = spec("unknown-plain", sliding_window=128).notes
    assert any("sliding_window 128 is not applied" in note for note in notes)
    off = spec("unknown-plain", sliding_window=128, use_sliding_window=False).notes
    assert not any("sliding_window" in note for note in off)


def test_defaults_of_the_family_are_listed() -> None:
    notes = spec("gemma-3-4b").notes
    assert "not in the config, taken from the family: head_dim 256" in notes


def test_json_that_is_no_model_config() -> None:
    nothing: tuple[dict[str, Any], ...] = ({}, {"model_type": "llama"}, {"text_config": {}})
    for useless in nothing:
        with pytest.raises(ModelConfigError):
            read_spec(useless)
