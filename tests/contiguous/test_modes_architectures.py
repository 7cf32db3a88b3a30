"""Architectures that mix layers with and without windows, each in its own way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from servers.contiguous.service import build_service
from servers.contiguous.settings import Settings
from tests.contiguous.modes import mode_bench
from tests.contiguous.support import BOS, EOS, PAD, loaded_model, random_prompt, reference

SIZES = [(50, 20), (5, 30), (17, 9)]

COMMON: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "sliding_window": 16,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}


def made(name: str) -> Any:
    torch.manual_seed(0)
    models: dict[str, Any] = {
        "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(head_dim=32, **COMMON)),
        "phi3": lambda: Phi3ForCausalLM(Phi3Config(**COMMON)),
        "cohere2": lambda: Cohere2ForCausalLM(Cohere2Config(**COMMON)),
        # the first two layers see all, the others their window
        "qwen2": lambda: Qwen2ForCausalLM(
            Qwen2Config(use_sliding_window=True, max_window_layers=2, **COMMON)
        ),
    }
    return models[name]().eval()


@pytest.mark.parametrize("cache", ["sliding", "off"])
@pytest.mark.parametrize("name", ["gemma2", "phi3", "cohere2", "qwen2"])
def test_windows_by_config_are_served_as_generate_has_them(name: str, cache: Any) -> None:
    model = made(name)
    build_service(loaded_model(model), Settings(name, name, cache=cache))
    bench = mode_bench(model, cache, prefill_chunk=20)
    outs = []
    for index, (prompt, tokens) in enumerate(SIZES):
        outs.append(bench.submit(random_prompt(prompt, index), tokens)[1])
        bench.steps(1)
    bench.run()
    for index, (prompt, tokens) in enumerate(SIZES):
        assert outs[index].ids == reference(model, random_prompt(prompt, index), tokens).ids
    assert len(set(outs[0].ids)) > 5, "a constant output would prove nothing"
