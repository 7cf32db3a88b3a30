"""Dtypes of flags and configs: who wins, what is refused, and flags that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import ModelConfigError, OptionError
from harness.kv.engine import EngineOptions
from harness.kv.plan_types import PlanOptions
from tests.kv.models import GIB, planned


def warned(name: str, options: PlanOptions, **changes: Any) -> str:
    return " | ".join(planned(name, options, **changes).warnings)


@pytest.mark.parametrize("name", ["llama-2-7b", "granite-4-h-tiny", "mamba-2.8b", "gemma-2-9b"])
@pytest.mark.parametrize("dtype", ["zzz", "fp8", "int8", "", "FLOAT32"])
def test_an_unknown_state_dtype_is_refused_whatever_the_model(name: str, dtype: str) -> None:
    options = PlanOptions(engine=EngineOptions(state_dtype=dtype))
    with pytest.raises(OptionError, match=r"--mamba-ssm-cache-dtype: .* one of auto, float32"):
        planned(name, options)


@pytest.mark.parametrize("name", ["llama-2-7b", "granite-4-h-tiny", "mamba-2.8b"])
def test_unknown_dtypes_are_refused_whatever_the_model(name: str) -> None:
    with pytest.raises(OptionError, match="--dtype: 'zzz'"):
        planned(name, PlanOptions(dtype="zzz"))
    with pytest.raises(OptionError, match="--kv-dtype: 'zzz'"):
        planned(name, PlanOptions(kv_dtype="zzz"))


def test_flags_without_effect_are_said() -> None:
    given = PlanOptions(
        engine=EngineOptions(
            device="cpu",
            state_dtype="float32",
            prefix_caching=False,
            hybrid_manager=False,
            async_scheduling=True,
        ),
        utilization=0.5,
        weights_bytes=GIB,
        overhead_bytes=0,
        seed=3,
    )
    text = warned("llama-2-7b", given)
    for flag in (
        "--mamba-ssm-cache-dtype",
        "--no-enable-prefix-caching",
        "--disable-hybrid-kv-cache-manager",
        "--async-scheduling",
        "--utilization",
        "--weights",
        "--overhead",
        "--seed",
    ):
        assert f"{flag} has no effect: " in text
    quantised = PlanOptions(kv_dtype="fp8", dtype="float16")
    assert "--kv-dtype has no effect" in warned("mamba-2.8b", quantised)
    # where they mean something, nothing is said
    used = PlanOptions(
        engine=EngineOptions(state_dtype="float32", prefix_caching=False, hybrid_manager=True),
        kv_dtype="fp8",
        vram_bytes=80 * GIB,
        utilization=0.5,
        weights_bytes=GIB,
        overhead_bytes=0,
        lengths=((10, 10),),
        seed=3,
    )
    hybrid = warned("granite-4-h-tiny", used)
    assert "--mamba-ssm-cache-dtype" not in hybrid
    assert "--no-enable-prefix-caching" not in hybrid
    assert "--kv-dtype" not in hybrid
    assert "no effect" not in warned("gemma-2-9b", PlanOptions(engine=EngineOptions()))
    assert "no effect" not in hybrid.replace("--hybrid-kv-cache-manager has no effect", "")


def test_a_convolution_alone_is_no_recurrent_state() -> None:
    lfm2 = {
        "model_type": "lfm2",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "full_attention"],
        "torch_dtype": "bfloat16",
    }
    options = PlanOptions(engine=EngineOptions(state_dtype="float32"))
    assert "--mamba-ssm-cache-dtype has no effect" in warned("llama-2-7b", options, **lfm2)


def test_dtype_counts_before_its_old_name() -> None:
    # 2 x 32 layers x 32 heads x 128 x 4 B would be float32's, x 2 B is bfloat16's
    both = {"dtype": "bfloat16", "torch_dtype": "float32"}
    plan = planned("llama-2-7b", **both)
    assert (plan.dtype, plan.kv_bytes_per_token) == ("bfloat16", 524_288)
    said = [text for text in plan.warnings if "contradicts itself" in text]
    assert said == [
        "the config contradicts itself: config.dtype 'bfloat16' counts, as transformers and vLLM "
        "read it, and not config.torch_dtype 'float32'; --dtype decides"
    ]
    same = planned("llama-2-7b", dtype="float16", torch_dtype="torch.float16")
    assert not any("contradicts" in text for text in same.warnings)
    null = planned("llama-2-7b", dtype=None, torch_dtype="bfloat16")
    assert null.dtype == "bfloat16"
    assert not any("contradicts" in text for text in null.warnings)


def test_the_whole_models_dtype_counts_before_its_parts() -> None:
    part = {"text_config": {"num_hidden_layers": 6, "torch_dtype": "float16"}}
    plan = planned("gemma-3-4b", torch_dtype="bfloat16", **part)
    assert plan.dtype == "bfloat16"
    assert any("and not config.text_config.torch_dtype 'float16'" in w for w in plan.warnings)


def test_the_dtype_of_a_config_is_one_that_runs() -> None:
    with pytest.raises(ModelConfigError, match="config: its dtype is 'zzz'; expected float16"):
        planned("llama-2-7b", torch_dtype="zzz")
    # a flag stands in for it
    assert planned("llama-2-7b", PlanOptions(dtype="float16"), torch_dtype="zzz").dtype == "float16"
    for stored in ("float64", "float8_e4m3fn"):
        plan = planned("llama-2-7b", torch_dtype=stored)
        assert plan.dtype == "bfloat16"
        assert any("falls back to bfloat16" in text for text in plan.warnings)
    # torch's own spelling: DeepSeek's note of what expansion costs reads it too
    assert planned("deepseek-v3", torch_dtype="torch.bfloat16").kv_bytes_per_token == 70_272


SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor"}


@pytest.mark.parametrize(
    "quantised",
    [
        {"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME},
        {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}},
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
    ],
)
def test_a_checkpoint_may_bring_its_kv_dtype(quantised: dict[str, Any]) -> None:
    plan = planned("llama-2-7b", quantization_config=quantised)
    assert (plan.kv_dtype, plan.kv_bytes_per_token) == ("fp8", 524_288 // 2)
    assert any("keeps K and V in fp8" in text for text in plan.warnings)
    asked = planned("llama-2-7b", PlanOptions(kv_dtype="bf16"), quantization_config=quantised)
    assert asked.kv_bytes_per_token == 524_288


def test_an_unknown_kv_scheme_is_refused_by_name() -> None:
    scheme = {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}
    with pytest.raises(ModelConfigError, match="its KV cache scheme is 'NVFP4'"):
        planned("llama-2-7b", quantization_config=scheme)
    without = planned("llama-2-7b", quantization_config={"quant_method": "fp8"})
    assert without.kv_dtype == "float16"
