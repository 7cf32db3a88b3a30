"""Greedy output of the modes beside static and dynamic, against transformers' own.

``off`` equals ``model.generate``; ``quantized`` equals it with transformers' quantized
cache, ``sliding`` with a model that has the window by config.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    QuantizedCache,
)

from servers.contiguous.layout import KvLayout, probe_layout
from tests.contiguous.agreement import require_equal_to_close_steps
from tests.contiguous.modes import mode_bench
from tests.contiguous.support import (
    BOS,
    CPU,
    EOS,
    PAD,
    Reference,
    generated,
    random_prompt,
    reference,
)
from tests.contiguous.test_greedy import SIZES, staggered

WINDOW = 24


@pytest.fixture(scope="module")
def references(model: Any) -> list[Reference]:
    return [reference(model, random_prompt(p, i), n) for i, (p, n) in enumerate(SIZES)]


@pytest.mark.parametrize("chunk", [512, 32])
def test_off_with_seven_neighbours(model: Any, references: list[Reference], chunk: int) -> None:
    """A prompt is computed whole, whatever the chunk."""
    bench = mode_bench(model, "off", prefill_chunk=chunk)
    assert staggered(bench) == [expected.ids for expected in references]


def test_off_in_bf16_up_to_the_first_close_step(bf16_model: Any) -> None:
    expected = [reference(bf16_model, random_prompt(p, i), n) for i, (p, n) in enumerate(SIZES)]
    require_equal_to_close_steps(staggered(mode_bench(bf16_model, "off")), expected)


def quantized_reference(model: Any, prompt: list[int], tokens: int, bits: int) -> list[int]:
    """transformers alone: its quantized cache, a batch of one."""
    cache = QuantizedCache("hqq", model.config, nbits=bits)
    out = generated(model, prompt, tokens, past_key_values=cache)
    ids: list[int] = out.sequences[0, len(prompt) :].tolist()
    return ids


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_is_transformers_own_with_neighbours(model: Any, bits: int) -> None:
    """The third answer is longer than a residual, so that it is quantized again on the way."""
    sizes = [(40, 60), (3, 5), (17, 150), (129, 12), (1, 47)]
    bench = mode_bench(model, "quantized", kv_bits=bits)
    outs = []
    for index, (prompt, tokens) in enumerate(sizes):
        outs.append(bench.submit(random_prompt(prompt, index), tokens)[1])
        bench.steps(index % 3 + 1)
    bench.run()
    for index, (prompt, tokens) in enumerate(sizes):
        expected = quantized_reference(model, random_prompt(prompt, index), tokens, bits)
        assert outs[index].ids == expected


def test_quantized_differs_from_full_precision(model: Any, references: list[Reference]) -> None:
    """Else the comparison above would prove nothing about rounding."""
    bench = mode_bench(model, "quantized", kv_bits=4)
    assert staggered(bench) != [expected.ids for expected in references]


def mistral(window: int | None) -> MistralForCausalLM:
    """All layers see ``window`` tokens, by config."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=288,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.15,
        sliding_window=window,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    return MistralForCausalLM(config).eval()


def gemma() -> Gemma3ForCausalLM:
    """Two of three layers see ``WINDOW`` tokens, the third all."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=288,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.3,
        tie_word_embeddings=False,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    return Gemma3ForCausalLM(config).eval()


def expected_ids(model: Any) -> list[list[int]]:
    return [reference(model, random_prompt(p, i), n).ids for i, (p, n) in enumerate(SIZES)]


@pytest.mark.parametrize("chunk", [512, 32, 7])
@pytest.mark.parametrize("made", [lambda: mistral(WINDOW), gemma], ids=["mistral", "gemma3"])
def test_sliding_by_config_is_generate(made: Any, chunk: int) -> None:
    model = made()
    bench = mode_bench(model, "sliding", prefill_chunk=chunk)
    ids = staggered(bench)
    assert ids == expected_ids(model)
    assert len(set(ids[0])) > 10, "a constant output would prove nothing"


@pytest.mark.parametrize("chunk", [512, 32])
def test_a_window_over_a_model_without_one(chunk: int) -> None:
    """The same weights, once with the window in the config and once by ``--sliding-window``."""
    plain = mistral(None)
    plain.load_state_dict(mistral(WINDOW).state_dict())
    bench = mode_bench(plain, "sliding", sliding_window=WINDOW, prefill_chunk=chunk)
    ids = staggered(bench)
    assert ids == expected_ids(mistral(WINDOW))
    assert ids != expected_ids(plain), "the window changes answers"


def test_a_window_longer_than_every_text_changes_nothing(
    model: LlamaForCausalLM, references: list[Reference]
) -> None:
    bench = mode_bench(model, "sliding", sliding_window=512)
    assert staggered(bench) == [expected.ids for expected in references]


def test_a_window_of_one_sees_itself_only(model: LlamaForCausalLM) -> None:
    """The next token then depends on the last one and nothing else."""
    bench = mode_bench(model, "sliding", sliding_window=1)
    _, one = bench.submit([5, 9, 70], 6)
    _, other = bench.submit([8, 70], 6)
    bench.run()
    assert len(one.ids) == 6
    # positions turn queries and keys alike, and a token that sees itself alone has weight 1
    assert one.ids == other.ids


def test_off_serves_models_with_windows() -> None:
    model = gemma()
    assert staggered(mode_bench(model, "off")) == expected_ids(model)


def test_layout_knows_windows() -> None:
    layout: KvLayout = probe_layout(gemma(), CPU)
    assert [layer.window for layer in layout.layers] == [WINDOW, None, WINDOW]
    assert [layer.window for layer in layout.windowed(100).layers] == [WINDOW, 100, WINDOW]
    assert [layer.window for layer in layout.windowed(10).layers] == [10, 10, 10]
