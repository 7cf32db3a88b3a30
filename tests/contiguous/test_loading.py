"""What is refused, by name; what a model's files decide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3Config,
    T5Config,
    ViTConfig,
)

from harness.errors import ModelConfigError, OptionError
from servers.contiguous.layout import probe_layout
from servers.contiguous.loading import (
    choose_device,
    choose_max_model_len,
    eos_token_ids,
    load,
    refuse_unsupported,
)
from servers.contiguous.selfcheck import CHECK_ROWS, CHECK_TOKENS, check_model, check_padded
from servers.contiguous.service import build_service
from servers.contiguous.settings import Settings
from tests.contiguous.support import (
    CPU,
    byte_tokenizer,
    loaded_model,
    make_cache,
    make_policy,
    make_runner,
    tiny_model,
)

KINDS = pytest.mark.parametrize(
    "kind", ["static", "exact", "dynamic", "batch-max", "batch-dynamic"]
)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "encoder-decoder"),
        (ViTConfig(), "no causal language model"),
        (MistralConfig(sliding_window=4096), "DynamicSlidingWindowLayer"),
        (Gemma3TextConfig(num_hidden_layers=6), "DynamicSlidingWindowLayer"),
        (DeepseekV3Config(), "multi-head latent attention"),
        (MambaConfig(), "cache layers of type"),
    ],
)
def test_refused_by_name(config: Any, reason: str) -> None:
    with pytest.raises(ModelConfigError, match=reason) as caught:
        refuse_unsupported(config, "some-model")
    assert str(caught.value).startswith("--model: some-model ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(), Qwen3Config(), GPT2Config(), MistralConfig(sliding_window=None), BertConfig()],
)
def test_plain_attention_is_served(config: Any) -> None:
    """BERT as a causal decoder passes here and is caught by the self-check."""
    refuse_unsupported(config, "some-model")


def test_a_model_without_sdpa_is_refused(tmp_path: Path) -> None:
    config = BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=259)
    BloomForCausalLM(config).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    settings = Settings(str(tmp_path), "bloom", device="cpu", max_model_len=32)
    with pytest.raises(ModelConfigError, match="scaled_dot_product_attention"):
        load(settings)


def test_load_from_a_folder(tmp_path: Path, model: Any) -> None:
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    settings = Settings(
        model=str(tmp_path),
        served_model_name="tiny",
        dtype="bfloat16",
        max_model_len=100,
        device="cpu",
    )
    made = load(settings)
    assert made.model.dtype == torch.bfloat16
    assert made.model.config._attn_implementation == "sdpa"
    assert (made.max_model_len, made.vocab_size) == (100, 288)
    assert made.eos_ids == {257}


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="its config could not be read") as caught:
        load(Settings(model=str(tmp_path), served_model_name="x", device="cpu"))
    assert "\n" not in str(caught.value)


def test_max_model_len() -> None:
    config = LlamaConfig(max_position_embeddings=2048)
    assert choose_max_model_len(None, config) == 2048
    assert choose_max_model_len(512, config) == 512
    with pytest.raises(OptionError, match="at most 2048"):
        choose_max_model_len(2049, config)


def test_eos_ids_of_generation_config_and_tokenizer() -> None:
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[5, 6]))
    assert eos_token_ids(model, SimpleNamespace(eos_token_id=7)) == {5, 6, 7}
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=None))
    assert eos_token_ids(model, SimpleNamespace(eos_token_id=None)) == frozenset()


def test_no_gpu_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(OptionError, match="no CUDA device"):
        choose_device("cuda")


def test_not_one_slot_fits(model: Any) -> None:
    """512 x 2,048 B = 1,048,576 B."""
    settings = Settings("tiny", "tiny", kv_budget_bytes=1_048_575)
    with pytest.raises(OptionError, match="512 tokens x 2048 B = 1048576 B"):
        build_service(loaded_model(model), settings)


@pytest.mark.parametrize(
    ("budget", "max_num_seqs", "slots"), [(2_097_152, 256, 2), (3_145_727, 256, 2), (10**9, 4, 4)]
)
def test_slots_of_a_budget(model: Any, budget: int, max_num_seqs: int, slots: int) -> None:
    """A slot is 1,048,576 B; max_num_seqs caps the pool too."""
    settings = Settings("tiny", "tiny", kv_budget_bytes=budget, max_num_seqs=max_num_seqs)
    assert build_service(loaded_model(model), settings).info["slots"] == slots


def check(model: Any, kind: str) -> Any:
    """Check a model as a server of this kind would; returns the cache."""
    layout = probe_layout(model, CPU)
    cache = make_cache(kind, layout, CHECK_ROWS, CHECK_TOKENS)
    runner = make_runner(model, make_policy(kind, layout, CHECK_ROWS, CHECK_TOKENS), cache, layout)
    (check_padded if kind.startswith("batch") else check_model)(model, runner.cache, CPU)
    return runner.cache


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_self_check_passes_a_plain_model(kind: str, dtype: torch.dtype) -> None:
    model = tiny_model(dtype)
    cache = check(model, kind)
    held = cache.held().used_bytes if kind.startswith("batch") else cache.used_bytes()
    assert held == 0


@KINDS
def test_self_check_passes_learned_positions(kind: str) -> None:
    """GPT-2: no rotation, one position embedding, as many KV heads as heads."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=300)).eval()
    check(model, kind)


def drop_mask(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "attention_mask": None}


def drop_positions(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "position_ids": torch.zeros_like(arguments["position_ids"])}


@KINDS
@pytest.mark.parametrize("broken", [drop_mask, drop_positions])
def test_self_check_finds_a_model_that_ignores_what_it_is_given(
    kind: str, broken: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    model: Any = tiny_model()
    plain = model.forward

    def forward(**arguments: Any) -> Any:
        return plain(**(broken(arguments) if "position_ids" in arguments else arguments))

    model.forward = forward
    with pytest.raises(ModelConfigError, match="other logits"):
        check(model, kind)


@KINDS
def test_self_check_refuses_a_model_that_cannot_take_what_it_is_given(kind: str) -> None:
    model: Any = tiny_model()
    plain = model.forward

    def forward(**arguments: Any) -> Any:
        if "position_ids" in arguments:
            raise ValueError("no such mask")
        return plain(**arguments)

    model.forward = forward
    words = r"LlamaForCausalLM does not run in this cache \(ValueError: no such mask\)"
    with pytest.raises(ModelConfigError, match=words):
        check(model, kind)
