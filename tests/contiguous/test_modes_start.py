"""What the modes refuse at start, and what they say of themselves once they serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from harness.errors import ModelConfigError, OptionError
from servers.contiguous.cli import main
from servers.contiguous.loading import refuse_unsupported
from servers.contiguous.server import summary
from servers.contiguous.service import build_service
from servers.contiguous.settings import Settings
from tests.contiguous.serving import frames, metric, real_service, serving, wait_until
from tests.contiguous.support import byte_tokenizer, loaded_model
from tests.contiguous.test_modes_greedy import WINDOW, gemma

MODEL = ["--model", "tiny"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--kv-bits", "4"], ["--kv-bits", "--cache quantized"]),
        (["--cache", "quantized", "--kv-bits", "5"], ["--kv-bits", "'4', '8'"]),
        (["--sliding-window", "64", "--cache", "dynamic"], ["--sliding-window", "--cache sliding"]),
        (["--cache", "sliding", "--sliding-window", "0"], ["--sliding-window"]),
        (["--compile", "--cache", "dynamic"], ["--compile", "--cache static"]),
        (["--compile", "--reserve", "exact"], ["--compile", "--reserve max"]),
        (["--compile", "--batching", "static"], ["--batching", "--compile"]),
        (["--cache", "off", "--batching", "static"], ["--batching", "dynamic"]),
    ],
)
def test_options_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    assert main([*MODEL, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


@pytest.mark.parametrize("cache", ["static", "dynamic", "quantized"])
def test_windows_by_config_need_a_mode_that_knows_them(cache: str) -> None:
    with pytest.raises(ModelConfigError, match="--cache sliding") as caught:
        refuse_unsupported(Gemma3TextConfig(num_hidden_layers=6), "some-model", cache)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cache", ["sliding", "off"])
def test_they_serve_windows_by_config(cache: str) -> None:
    refuse_unsupported(Gemma3TextConfig(num_hidden_layers=6), "some-model", cache)


def test_attention_in_chunks_has_a_windows_cache_but_another_mask() -> None:
    config = transformers.Llama4TextConfig(num_hidden_layers=4)
    with pytest.raises(ModelConfigError, match="chunked_attention"):
        refuse_unsupported(config, "some-model", "sliding")


def build(model: Any, cache: Any, **settings: Any) -> Any:
    return build_service(loaded_model(model), Settings("tiny", "tiny", cache=cache, **settings))


def test_sliding_needs_some_window(model: Any) -> None:
    with pytest.raises(OptionError, match="the model has no window of its own"):
        build(model, "sliding")


def test_a_window_that_the_self_check_sees(model: Any) -> None:
    """Texts of 7 tokens, windows of 3: compared with the plain forward under the same mask."""
    assert build(model, "sliding", sliding_window=3).info["sliding_window"] == 3
    assert build(gemma(), "sliding", sliding_window=3).info["sliding_window"] == 3


def test_numbers_that_fill_no_group() -> None:
    """1 KV head x 32 = 32 numbers, half of a group of 64."""
    config = LlamaConfig(
        vocab_size=288, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    )  # fmt: skip
    with pytest.raises(ModelConfigError, match="1 KV heads x 32 numbers"):
        build(LlamaForCausalLM(config).eval(), "quantized")


def test_hqq_is_missing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.cache_utils, "is_hqq_available", lambda: False)
    with pytest.raises(OptionError, match="needs the package hqq") as caught:
        build(model, "quantized")
    assert "\n" not in str(caught.value)


def test_transformers_has_no_such_layer(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(transformers.cache_utils, "HQQQuantizedLayer")
    with pytest.raises(OptionError, match="transformers with HQQQuantizedLayer"):
        build(model, "quantized")


def test_a_pool_beyond_memory(model: Any) -> None:
    """2^36 slots of 1 MiB: 2^53 B for each tensor, more than 47 bits can address."""
    with pytest.raises(OptionError, match="fits into memory"):
        build(model, "static", kv_budget_bytes=2**56, max_num_seqs=2**36)


def test_refused_by_the_process_in_one_line(
    tmp_path: Path, model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["--model", str(tmp_path), "--cache", "sliding", "--port", "0"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("error: --sliding-window: ")
    assert "Traceback" not in "".join(err)


@pytest.mark.parametrize(
    ("settings", "stated"),
    [
        (
            {"cache": "off"},
            {"cache": "off", "kv_budget_bytes": None, "kv_bytes_per_token": None},
        ),
        (
            {"cache": "quantized"},
            {"kv_bits": 4, "kv_residual_tokens": 127, "kv_bytes_per_token": 2048,
             "changes_answers": "keys and values are rounded to 4 bits"},
        ),
        (
            {"cache": "sliding", "sliding_window": WINDOW},
            {"sliding_window": WINDOW,
             "changes_answers": f"every layer sees the last {WINDOW} tokens only"},
        ),
        ({"cache": "dynamic"}, {"changes_answers": None, "compile": None}),
        ({"cache": "static"}, {"compile": False, "reserve": "max"}),
    ],
    ids=["off", "quantized", "sliding", "dynamic", "static"],
)  # fmt: skip
def test_the_version_names_the_mode(
    model: Any, settings: dict[str, Any], stated: dict[str, Any]
) -> None:
    info = build_service(loaded_model(model), Settings("tiny", "tiny", **settings)).info
    nothing = {"kv_bits": None, "sliding_window": None, "attention": "sdpa", "mode": info["cache"]}
    assert {**nothing, **stated}.items() <= info.items()


def test_own_windows_change_no_answers() -> None:
    info = build(gemma(), "sliding").info
    assert (info["sliding_window"], info["changes_answers"]) == (WINDOW, None)


def test_the_terminal_says_that_answers_change(model: Any) -> None:
    text = summary(build(model, "sliding", sliding_window=9), "http://x")
    assert "CHANGES ANSWERS: every layer sees the last 9 tokens only" in text
    assert "CHANGES" not in summary(build(model, "static"), "http://x")
    off = summary(build(model, "off"), "http://x")
    assert "no KV cache" in off
    assert "budget" not in off


@pytest.mark.parametrize("mode", ["off", "quantized", "sliding"])
def test_serves_over_http(model: Any, mode: str) -> None:
    window = WINDOW if mode == "sliding" else None
    with serving(real_service(model, cache=mode, sliding_window=window)) as client:
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True, "temperature": 0}
        assert len(frames(client, "/v1/completions", body)) == 6
        part = "payload" if mode == "quantized" else "full"
        # the last frame goes out just before its request's memory is let go
        wait_until(lambda: metric(client, "contiguous_kv_part_bytes", model="tiny", part=part) == 0)
        assert metric(client, "contiguous_cache_info", cache=mode) == 1
        assert (metric(client, "contiguous_kv_budget_bytes") is None) == (mode == "off")
