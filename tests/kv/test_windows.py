"""Sliding and chunked layers: who has them, and what a config must say for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness.errors import ModelConfigError
from harness.kv.bytes import kv_bytes_per_token_full
from harness.kv.spec import read_spec
from tests.kv.models import config, spec


def kinds(name: str, **changes: object) -> Counter[str]:
    return Counter(layer.kind for layer in spec(name, **changes).layers)


def test_patterns_of_sliding_layers() -> None:
    # Gemma 3: every sixth of 34 layers is full: 6, 12, 18, 24, 30
    assert kinds("gemma-3-4b") == {"sliding": 29, "full": 5}
    assert kinds("gemma-2-9b") == {"sliding": 21, "full": 21}
    assert kinds("gpt-oss-120b") == {"sliding": 18, "full": 18}
    assert kinds("command-r7b") == {"sliding": 24, "full": 8}
    assert kinds("mistral-7b-v0.1") == {"sliding": 32}
    assert kinds("llama-4-scout") == {"chunked": 36, "full": 12}
    assert kinds("gemma-3n-e4b") == {"sliding": 16, "full": 4, "shared": 15}


def test_command_r7b_sees_one_token_more_than_its_window() -> None:
    windows = {layer.window for layer in spec("command-r7b").layers}
    assert windows == {None, 4097}


def test_a_null_or_zero_window_is_none() -> None:
    for window in (None, 0):
        assert kinds("mistral-7b-v0.1", sliding_window=window) == {"full": 32}


def test_qwen_windows_need_their_switch() -> None:
    assert kinds("qwen2.5-7b") == {"full": 28}
    on = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert kinds("qwen2.5-7b", **on) == {"full": 20, "sliding": 8}
    # beyond the window only the 20 full layers grow: 2 x 20 x 4 x 128 x 2 B
    assert kv_bytes_per_token_full(spec("qwen2.5-7b", **on)) == 40_960


def test_qwen_layer_types_count_only_with_the_switch() -> None:
    mixed = ["full_attention"] * 20 + ["sliding_attention"] * 8
    off = {"layer_types": mixed, "use_sliding_window": False, "sliding_window": 4096}
    assert kinds("qwen2.5-7b", **off) == {"full": 28}
    notes = spec("qwen2.5-7b", **off).notes
    assert any("use_sliding_window is not true: all layers count as full" in n for n in notes)
    # the same types with the switch on, and all of one kind with it off: nothing to say
    on = off | {"use_sliding_window": True}
    assert kinds("qwen2.5-7b", **on) == {"full": 20, "sliding": 8}
    assert any("windows in all layers or in none" in n for n in spec("qwen2.5-7b", **on).notes)
    full = off | {"layer_types": ["full_attention"] * 28}
    assert not any("layer" in note for note in spec("qwen2.5-7b", **full).notes)


@pytest.mark.parametrize("switch", [None, False, True])
@pytest.mark.parametrize(
    ("types", "words"),
    [
        (["full_attention"] * 27, "layer_types has 27 entries for 28 layers"),
        (["full_attention"] * 27 + ["mamba"], "layer_types has 'mamba'"),
        (["chunked_attention"] * 28, "layer_types has 'chunked_attention'"),
        ("full_attention", "expected a list of texts"),
        ([1] * 28, "expected a list of texts"),
    ],
)
def test_qwen_layer_types_are_checked_with_and_without_the_switch(
    switch: bool | None, types: Any, words: str
) -> None:
    changes = {"layer_types": types, "use_sliding_window": switch, "sliding_window": 4096}
    with pytest.raises(ModelConfigError, match=words):
        spec("qwen2.5-7b", **changes)


def test_a_qwen_switch_without_a_window_switches_nothing() -> None:
    for window in (None, 0):
        on: dict[str, Any] = {"use_sliding_window": True, "sliding_window": window}
        assert kinds("qwen2.5-7b", **on) == {"full": 28}
        assert kinds("qwen2.5-7b", layer_types=["full_attention"] * 28, **on) == {"full": 28}
        with pytest.raises(ModelConfigError, match="sliding_window is not set"):
            spec("qwen2.5-7b", layer_types=["sliding_attention"] * 28, **on)


def test_windows_of_the_qwen_mixtures() -> None:
    on = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    # every layer of 48, whatever max_window_layers says
    assert kinds("qwen3-30b-a3b", **on) == {"sliding": 48}
    # Qwen 2's: layers 0, 2, ... 18 of the first 20
    assert kinds("qwen3-30b-a3b", model_type="qwen2_moe", **on) == {"sliding": 10, "full": 38}
    # without max_window_layers the class says 28: as many as this model has
    del on["max_window_layers"]
    plain = config("qwen2.5-7b") | on
    plain.pop("max_window_layers", None)
    assert {layer.kind for layer in read_spec(plain).layers} == {"full"}


def test_llama_4_without_chunks_is_full() -> None:
    scout = config("llama-4-scout")
    scout["text_config"]["attention_chunk_size"] = None
    assert {layer.kind for layer in read_spec(scout).layers} == {"full"}


def test_layer_types_of_plain_families() -> None:
    sliding = {"layer_types": ["sliding_attention"] * 32, "sliding_window": 512}
    assert kinds("llama-2-7b", **sliding) == {"sliding": 32}
    assert kv_bytes_per_token_full(spec("llama-2-7b", **sliding)) == 0
    mixed = ["sliding_attention", "full_attention"] * 16
    # beyond the window 16 layers grow: 2 x 16 x 32 x 128 x 2 B
    model = spec("llama-2-7b", layer_types=mixed, sliding_window=512)
    assert kv_bytes_per_token_full(model) == 262_144


def test_llama_4_types_are_checked_without_chunks_too() -> None:
    scout = config("llama-4-scout")
    text = scout["text_config"]
    text |= {"attention_chunk_size": None, "layer_types": ["mamba"] * text["num_hidden_layers"]}
    with pytest.raises(ModelConfigError, match="layer_types has 'mamba'"):
        read_spec(scout)
