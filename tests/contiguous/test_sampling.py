"""Sampling: deterministic by seed, unmoved by neighbours, within top_p and top_k."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from servers.contiguous.layout import KvLayout
from servers.contiguous.sampling import Sampler, SamplingParams, choose_tokens
from tests.contiguous.support import CPU, EOS, Bench, random_prompt


def sampler(**options: Any) -> Sampler:
    return Sampler(SamplingParams(max_tokens=9, **options), frozenset([3]), CPU)


def draw(logits: list[float], count: int, **options: Any) -> Counter[int]:
    made = sampler(seed=7, **options)
    row = torch.tensor([logits])
    return Counter(choose_tokens(row.clone(), [made], [index])[0] for index in range(count))


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 4.0]])
    greedy = sampler(temperature=0.0)
    assert choose_tokens(logits, [greedy, greedy], [0, 0]) == [1, 0]


def test_frequencies_follow_the_softmax() -> None:
    """ln 6, ln 3, ln 1 are chances of 0.6, 0.3 and 0.1; 2,000 draws, 4 sigma = 0.044."""
    counts = draw([1.7918, 1.0986, 0.0], 2000)
    for token, chance in enumerate((0.6, 0.3, 0.1)):
        assert abs(counts[token] / 2000 - chance) < 0.044


def test_temperature_sharpens() -> None:
    """At 0.5 the chances are squared: 0.36, 0.09, 0.01 over 0.46: the first is 0.78."""
    counts = draw([1.7918, 1.0986, 0.0], 2000, temperature=0.5)
    assert abs(counts[0] / 2000 - 0.36 / 0.46) < 0.044


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.5, {0}), (0.59, {0}), (0.61, {0, 1}), (1.0, {0, 1, 2})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: set[int]) -> None:
    assert set(draw([1.791759, 1.098612, 0.0], 300, top_p=top_p)) == kept


@pytest.mark.parametrize("top_p", [1e-300, 5e-324, 1e-40])
def test_a_top_p_below_float32_still_keeps_the_likeliest(top_p: float) -> None:
    assert set(draw([1.0, 3.0, 2.0], 50, top_p=top_p)) == {1}


@pytest.mark.parametrize(
    ("temperature", "kept"), [(5e-324, {1}), (1e-300, {1}), (1e-5, {1}), (1e300, {0, 1, 2})]
)
def test_temperatures_beyond_float32(temperature: float, kept: set[int]) -> None:
    """Token 3 is withheld, its logit is -inf; of three equal chances one is missing in 200
    draws with a chance of 3 x (2/3)^200 < 1e-34.
    """
    drawn = draw([1.0, 3.0, 2.0, 9.0], 200, temperature=temperature, min_tokens=200)
    assert set(drawn) == kept


def test_top_k() -> None:
    assert set(draw([1.0, 3.0, 2.0, 2.5], 300, top_k=2)) == {1, 3}


def test_min_tokens_withholds_what_would_end_the_text() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 9.0]])
    made = sampler(temperature=0.0, min_tokens=2)
    chosen = [choose_tokens(logits.clone(), [made], [count])[0] for count in range(3)]
    assert chosen == [2, 2, 3]


def test_same_seed_same_text_whatever_the_neighbours(model: Any, layout: KvLayout) -> None:
    def run(neighbours: int, seed: int) -> list[int]:
        bench = Bench(model, layout)
        for index in range(neighbours):
            bench.submit(random_prompt(5 + index, index), 30, temperature=1.0, seed=index)
        _, out = bench.submit(random_prompt(20, 99), 30, temperature=0.8, top_p=0.9, seed=seed)
        bench.run()
        return out.ids

    assert run(0, 1) == run(5, 1)
    assert run(0, 1) != run(0, 2)


def test_without_a_seed_texts_differ(model: Any, layout: KvLayout) -> None:
    bench = Bench(model, layout)
    outs = [bench.submit(random_prompt(20, 1), 30, temperature=1.0)[1] for _ in range(2)]
    bench.run()
    assert outs[0].ids != outs[1].ids


def test_min_tokens_through_the_engine(model: Any, layout: KvLayout) -> None:
    """The 5th token of the plain text is made the end: with min_tokens = 8 it cannot come."""
    bench = Bench(model, layout)
    _, plain = bench.submit(random_prompt(20, 1), 12)
    bench.run()
    ending = frozenset([plain.ids[4]])
    _, short = bench.submit(random_prompt(20, 1), 12, stop_token_ids=ending)
    _, long = bench.submit(random_prompt(20, 1), 12, stop_token_ids=ending, min_tokens=8)
    bench.run()
    assert short.ids == plain.ids[: plain.ids.index(plain.ids[4]) + 1]
    assert len(long.ids) >= 8
    assert not ending & set(long.ids[:8])
    assert EOS not in short.ids
