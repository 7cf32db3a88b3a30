"""Every mode over the built-in models: ``tiny``, and SmolLM2's trained weights (slow).

float32: off, dynamic and static give ``generate``'s tokens, neighbours present; quantized
gives those of transformers' quantized cache, sliding those of a masked forward. bfloat16:
at every step whose two best logits are not closer than ``bf16_bound``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from servers.contiguous.layout import probe_layout
from servers.contiguous.loading import load
from servers.contiguous.padding import window_mask
from servers.contiguous.settings import Settings
from servers.models.smollm2 import make_smollm2
from servers.models.tiny import make_tiny
from tests.contiguous.agreement import require_equal_between_close_steps
from tests.contiguous.modes import mode_bench
from tests.contiguous.support import CPU, Bench, Reference, reference
from tests.contiguous.test_modes_greedy import quantized_reference

#: (prompt tokens, output tokens) of requests that run together
SIZES = [(48, 24), (3, 30), (70, 9), (20, 16)]
WINDOW = 16


@pytest.fixture(
    scope="module",
    params=[pytest.param(make_tiny, id="tiny"), pytest.param(make_smollm2, id="smollm2",
                                                              marks=pytest.mark.slow)],
)  # fmt: skip
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], None] = request.param
    made: Path = tmp_path_factory.mktemp("model")
    make(made)
    return made


@pytest.fixture(scope="module")
def f32(folder: Path) -> Any:
    return load(Settings(str(folder), "m", dtype="float32", device="cpu")).model


def prompts(model: Any) -> list[list[int]]:
    """Seeded, of ids that every vocabulary here has as plain text."""
    generator = torch.Generator().manual_seed(7)
    vocab = min(int(model.config.vocab_size), 200)
    return [torch.randint(30, vocab, (size,), generator=generator).tolist() for size, _ in SIZES]


def bench_of(model: Any, cache: str, **options: Any) -> Bench:
    if cache in ("static", "dynamic"):
        return Bench(model, probe_layout(model, CPU), cache, max_model_len=128)
    return mode_bench(model, cache, **options)


def together(bench: Bench, asked: list[list[int]]) -> list[list[int]]:
    """Each joins one step after the one before."""
    outs = []
    for prompt, (_, tokens) in zip(asked, SIZES, strict=True):
        outs.append(bench.submit(prompt, tokens)[1])
        bench.steps(1)
    bench.run()
    return [out.ids for out in outs]


def references(model: Any) -> list[Reference]:
    pairs = zip(prompts(model), SIZES, strict=True)
    return [reference(model, prompt, tokens) for prompt, (_, tokens) in pairs]


@pytest.mark.parametrize("cache", ["off", "dynamic", "static"])
def test_float32_is_generate_to_the_token(f32: Any, cache: str) -> None:
    wanted = [expected.ids for expected in references(f32)]
    assert together(bench_of(f32, cache), prompts(f32)) == wanted


@pytest.mark.parametrize("cache", ["off", "dynamic", "static"])
def test_bfloat16_is_generate_between_close_steps(folder: Path, cache: str) -> None:
    """Past a close step the texts part, so each stretch between two is asked for anew, with
    the reference's own text as its prompt; the stretches run together.
    """
    model = load(Settings(str(folder), "m", dtype="bfloat16", device="cpu")).model
    bench = bench_of(model, cache)
    require_equal_between_close_steps(bench, prompts(model), references(model))


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_is_generate_with_transformers_quantized_cache(f32: Any, bits: int) -> None:
    asked = prompts(f32)
    wanted = [
        quantized_reference(f32, prompt, tokens, bits)
        for prompt, (_, tokens) in zip(asked, SIZES, strict=True)
    ]
    assert together(bench_of(f32, "quantized", kv_bits=bits), asked) == wanted


@torch.inference_mode()
def windowed_reference(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """Without any cache, under a mask that lets each token see the last ``WINDOW``."""
    text = list(prompt)
    for _ in range(tokens):
        mask = window_mask(0, len(text), WINDOW, CPU)
        output = model(input_ids=torch.tensor([text]), attention_mask=mask, use_cache=False)
        text.append(int(output.logits[0, -1].argmax()))
    return text[len(prompt) :]


def test_sliding_is_the_masked_forward(f32: Any) -> None:
    asked = prompts(f32)
    wanted = [
        windowed_reference(f32, prompt, tokens)
        for prompt, (_, tokens) in zip(asked, SIZES, strict=True)
    ]
    assert together(bench_of(f32, "sliding", sliding_window=WINDOW), asked) == wanted
