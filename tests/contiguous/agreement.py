"""Answers in bfloat16 against ``generate``'s, as far as rounding lets them be equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tests.contiguous.support import Bench, Reference

_TOO_LITTLE = "too little was compared to mean anything"


def bf16_bound(expected: Reference) -> float:
    """Four steps of bf16 (8 bits of significand) at the size of the largest logit.

    Two orders of summing give logits that differ by the rounding of bf16 all the way
    through the model. ``test_bf16_bound_covers_the_rounding`` measures that: about 0.02
    r.m.s. at logits of 4 to 8, where one step is 2^2 x 2^-7 = 0.031. The gap between two
    logits moves by sqrt(2) times that, 0.03; four steps, 0.125, are 4 standard deviations.
    """
    largest = float(expected.logits.abs().max())
    return 4 * 2.0 ** (math.floor(math.log2(largest)) - 7)


def require_equal_to_close_steps(
    answers: Iterable[list[int]], references: Sequence[Reference], least: int = 20
) -> None:
    """Each up to the first step whose best two logits are closer than the bound."""
    compared = 0
    for ids, expected in zip(answers, references, strict=True):
        close = (expected.gaps < bf16_bound(expected)).nonzero()
        sure = int(close[0]) if len(close) else len(expected.ids)
        assert ids[:sure] == expected.ids[:sure]
        compared += sure
    assert compared >= least, _TOO_LITTLE


def require_equal_between_close_steps(
    bench: Bench,
    prompts: Iterable[list[int]],
    references: Sequence[Reference],
    least: int = 20,
) -> None:
    """Past a close step the texts part, so each stretch between two is asked for anew.

    Its prompt is the reference's own text; the stretches run together.
    """
    stretches = []
    for prompt, expected in zip(prompts, references, strict=True):
        close = (expected.gaps < bf16_bound(expected)).nonzero().flatten().tolist()
        starts, ends = [0, *(at + 1 for at in close)], [*close, len(expected.ids)]
        for start, end in zip(starts, ends, strict=True):
            if start < end:
                _, out = bench.submit(prompt + expected.ids[:start], end - start)
                stretches.append((out, expected.ids[start:end]))
    bench.run()
    assert [out.ids for out, _ in stretches] == [wanted for _, wanted in stretches]
    assert sum(len(wanted) for _, wanted in stretches) >= least, _TOO_LITTLE
