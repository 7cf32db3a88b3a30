"""Greedy output equals ``model.generate``'s, alone and among neighbours, in all caches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from servers.contiguous.layout import KvLayout, probe_layout
from tests.contiguous.agreement import (
    bf16_bound,
    require_equal_between_close_steps,
    require_equal_to_close_steps,
)
from tests.contiguous.support import CPU, EOS, Bench, Reference, random_prompt, reference

#: (prompt tokens, output tokens) of a request and its seven neighbours; all differ, so
#: that rows join, are overtaken, and leave in another order than they came
SIZES = [(40, 90), (3, 5), (17, 33), (129, 12), (8, 70), (64, 20), (1, 47), (33, 64)]

KINDS = ["static", "exact", "pow2", "dynamic"]
#: whole batches, left-padded
BATCHES = ["batch-max", "batch-pow2", "batch-exact", "batch-dynamic"]


@pytest.fixture(scope="module")
def references(model: Any) -> list[Reference]:
    return [reference(model, random_prompt(p, i), n) for i, (p, n) in enumerate(SIZES)]


@pytest.fixture(scope="module")
def bf16_references(bf16_model: Any) -> list[Reference]:
    return [reference(bf16_model, random_prompt(p, i), n) for i, (p, n) in enumerate(SIZES)]


def staggered(bench: Bench) -> list[list[int]]:
    """Submit the requests some steps apart, run to the end, return each one's tokens."""
    outs = []
    for index, (prompt, tokens) in enumerate(SIZES):
        outs.append(bench.submit(random_prompt(prompt, index), tokens)[1])
        bench.steps(index % 4 + 1)
    bench.run()
    return [out.ids for out in outs]


@pytest.mark.parametrize("kind", KINDS + BATCHES)
def test_alone(model: Any, layout: KvLayout, references: list[Reference], kind: str) -> None:
    bench = Bench(model, layout, kind)
    _, out = bench.submit(random_prompt(40, 0), 90)
    bench.run()
    assert out.ids == references[0].ids
    assert len(set(out.ids)) > 20, "a constant output would prove nothing"


@pytest.mark.parametrize("chunk", [512, 32])
@pytest.mark.parametrize("kind", KINDS + BATCHES)
def test_with_seven_neighbours(
    model: Any, layout: KvLayout, references: list[Reference], kind: str, chunk: int
) -> None:
    bench = Bench(model, layout, kind, prefill_chunk=chunk)
    assert staggered(bench) == [expected.ids for expected in references]


@pytest.mark.parametrize("kind", KINDS + BATCHES)
def test_more_requests_than_slots(
    model: Any, layout: KvLayout, references: list[Reference], kind: str
) -> None:
    """3 at a time, so every slot is used again with what its last tenant left in it."""
    bench = Bench(model, layout, kind, slots=3)
    outs = [bench.submit(random_prompt(p, i), n)[1] for i, (p, n) in enumerate(SIZES)]
    bench.run()
    assert [out.ids for out in outs] == [expected.ids for expected in references]


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_that_are_cancelled(
    model: Any, layout: KvLayout, references: list[Reference], kind: str
) -> None:
    """Rows 0, 2 and the prefilling one leave at once while the others go on."""
    bench = Bench(model, layout, kind, prefill_chunk=100)
    made = [bench.submit(random_prompt(p, i), n) for i, (p, n) in enumerate(SIZES[:3])]
    bench.steps(2)
    made.append(bench.submit(random_prompt(*[129, 3]), 12))
    bench.steps(1)
    assert made[3][0].prefilled == 100
    for index in (0, 3):
        bench.engine.cancel(made[index][0])
    made.append(bench.submit(random_prompt(8, 4), 70))
    bench.run()
    assert made[1][1].ids == references[1].ids
    assert made[2][1].ids == references[2].ids
    assert made[4][1].ids == references[4].ids


def test_bf16_bound_covers_the_rounding(bf16_model: Any, bf16_references: list[Reference]) -> None:
    """Step by step against one forward over the whole text: the same sums in another order."""
    for index, (prompt, _) in enumerate(SIZES):
        expected = bf16_references[index]
        text = random_prompt(prompt, index) + expected.ids
        with torch.inference_mode():
            whole = bf16_model(torch.tensor([text])).logits[0, prompt - 1 : -1].float()
        rms = float((whole - expected.logits).pow(2).mean().sqrt())
        assert 4 * math.sqrt(2) * rms < 1.1 * bf16_bound(expected)


@pytest.mark.parametrize("kind", KINDS + BATCHES)
def test_bf16_with_seven_neighbours(
    bf16_model: Any, bf16_references: list[Reference], kind: str
) -> None:
    """Equal up to the first step whose best two logits are closer than the bound."""
    bench = Bench(bf16_model, probe_layout(bf16_model, CPU), kind, prefill_chunk=32)
    require_equal_to_close_steps(staggered(bench), bf16_references)


@pytest.mark.parametrize("kind", KINDS + BATCHES)
def test_bf16_every_sure_step(bf16_model: Any, bf16_references: list[Reference], kind: str) -> None:
    """Past a close step the texts part, so each stretch between two is asked for anew,
    with the reference's own text as its prompt; eight stretches at a time.
    """
    bench = Bench(bf16_model, probe_layout(bf16_model, CPU), kind)
    prompts = [random_prompt(prompt, index) for index, (prompt, _) in enumerate(SIZES)]
    require_equal_between_close_steps(bench, prompts, bf16_references, least=200)


@pytest.mark.parametrize("kind", KINDS + BATCHES)
def test_ends_at_eos_where_generate_does(model: Any, layout: KvLayout, kind: str) -> None:
    """With EOS = a token that the output is known to contain."""
    ids = torch.tensor([random_prompt(40, 0)])
    plain = reference(model, ids[0].tolist(), 40).ids
    ending = plain[25]
    expected = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=ending,
        pad_token_id=EOS,
    )[0, 40:].tolist()
    bench = Bench(model, layout, kind)
    _, out = bench.submit(ids[0].tolist(), 40, stop_token_ids=frozenset([ending]))
    bench.run()
    assert out.ids == expected
    assert out.finish == "stop"
