"""Requests of many lengths."""

from __future__ import annotations

import math
from statistics import median

import pytest

from harness.errors import OptionError
from harness.plan.mix import DEFAULT_LENGTHS, LogNormal, fit, parse_lengths
from harness.plan.traces import TraceRow


def rows(*lengths: tuple[int, int]) -> list[TraceRow]:
    return [TraceRow(0.0, prompt, output, (7,)) for prompt, output in lengths]


def pairs(made: tuple[TraceRow, ...]) -> list[tuple[int, int]]:
    return [(row.prompt_tokens, row.output_tokens) for row in made]


def test_the_default_reads() -> None:
    assert parse_lengths(DEFAULT_LENGTHS) == LogNormal(192, 0.9, 96, 0.7)


@pytest.mark.parametrize(
    "text",
    ["", "lognormal", "lognormal:1,2,3", "lognormal:0,1,1,1", "lognormal:9,4,9,1", "normal:1,1,1,1",
     "lognormal:1,1,1,x", "lognormal:1,1,1,-1", "lognormal:1e9,1,1,1"],
)  # fmt: skip
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"--lengths: .* expected lognormal:PROMPT,SIGMA,OUTPUT"):
        parse_lengths(text)


def test_drawn_lengths_have_their_medians() -> None:
    """Of 4,000 draws the median's standard error is 1.25 x 0.9 / sqrt(4,000) = 1.8 %."""
    made = LogNormal(192, 0.9, 96, 0.7).rows(4000, seed=3)
    assert abs(math.log(median(row.prompt_tokens for row in made) / 192)) < 0.08
    assert abs(math.log(median(row.output_tokens for row in made) / 96)) < 0.08
    assert made == LogNormal(192, 0.9, 96, 0.7).rows(4000, seed=3)
    assert made != LogNormal(192, 0.9, 96, 0.7).rows(4000, seed=4)


def test_no_spread_is_one_length() -> None:
    assert set(pairs(LogNormal(5, 0, 2, 0).rows(3, seed=0))) == {(5, 2)}


def test_scale_keeps_proportions() -> None:
    """The longest has 4,000 tokens, the context 1,000: a quarter of everything."""
    made = fit(rows((3000, 1000), (400, 40), (3, 1)), 1000, "scale")
    assert pairs(made.rows) == [(750, 250), (100, 10), (1, 1)]
    assert (made.factor, made.shortened, made.skipped) == (0.25, 2 + 1, 0)
    assert made.usual == (100, 10)
    assert made.longest == (750, 250)
    assert made.mean_tokens == (1000 + 110 + 2) / 3


def test_nothing_is_made_longer() -> None:
    made = fit(rows((30, 10)), 1000, "scale")
    assert (pairs(made.rows), made.factor, made.shortened) == ([(30, 10)], 1.0, 0)


def test_clip_cuts_the_prompt_first() -> None:
    made = fit(rows((90, 20), (5, 5), (90, 70)), 100, "clip")
    assert pairs(made.rows) == [(80, 20), (5, 5), (50, 50)]
    assert made.shortened == 2


def test_skip_leaves_out() -> None:
    made = fit(rows((90, 20), (5, 5)), 100, "skip")
    assert (pairs(made.rows), made.shortened, made.skipped) == ([(5, 5)], 0, 1)


def test_a_mix_shares_nothing() -> None:
    assert all(row.blocks == () for row in fit(rows((3, 1)), 10, "clip").rows)
