"""Two servers' answers held against each other, token by token. Pure.

Greedy decoding takes the likeliest token. Where the two likeliest are closer than rounding can
tell apart, two correct servers may take either, and all that follows differs with it: a *tie*.
So answers are compared up to their first difference. Up to there both servers saw the same
tokens, so that their log-probabilities at that place can be compared, too. The difference is a
tie when one server holds the two tokens closer than a stated bound and the other closer than
twice that (each rounds by itself, so that the errors of two add up); else the servers disagree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.equivalence.answers import Answer, Step

Verdict = Literal["same", "tie", "different"]

#: bound on the gap of two logits, by how many bits the model computes with. bf16 has 8 bits of
#: significand: logits of 8 to 16 lie 1/16 apart, and sums in another order move by a step or two
TIE_GAPS = {"float32": 1e-3, "float16": 0.03125, "bfloat16": 0.125}
DEFAULT_TIE_GAP = TIE_GAPS["bfloat16"]


@dataclass(frozen=True)
class Divergence:
    """The first place at which two answers differ."""

    #: tokens before it, on which both agree
    step: int
    tokens: tuple[int, int]
    #: each server's log-probability of its own token, and of the other's (None: not among its
    #: likeliest)
    own: tuple[float, float]
    others: tuple[float | None, float | None]
    #: each server's gap between its two likeliest tokens
    gaps: tuple[float | None, float | None]


@dataclass(frozen=True)
class PromptResult:
    """One prompt, answered by both."""

    number: int
    prompt_tokens: int
    verdict: Verdict
    #: tokens on which both agree, from the first on
    agreed: int
    #: tokens of the longer answer
    length: int
    divergence: Divergence | None
    #: size of the difference of both log-probabilities of the agreed tokens; None without any
    mean_logprob_error: float | None
    max_logprob_error: float | None


@dataclass(frozen=True)
class Comparison:
    """All prompts of one pair of servers."""

    reference: str
    other: str
    tie_gap: float
    results: tuple[PromptResult, ...]

    def count(self, verdict: Verdict) -> int:
        """Prompts with that verdict."""
        return sum(result.verdict == verdict for result in self.results)

    @property
    def agrees(self) -> bool:
        """Whether nothing but ties sets the answers apart."""
        return self.count("different") == 0

    @property
    def agreed_share(self) -> float:
        """Mean share of an answer up to its first difference."""
        return sum(result.agreed / result.length for result in self.results) / len(self.results)


def compare_answers(
    number: int, prompt_tokens: int, reference: Answer, other: Answer, tie_gap: float
) -> PromptResult:
    """Hold one prompt's two answers against each other."""
    agreed = _agreed(reference.tokens, other.tokens)
    errors = [
        abs(a.logprob - b.logprob)
        for a, b in zip(reference.steps[:agreed], other.steps[:agreed], strict=True)
    ]
    length = max(len(reference.steps), len(other.steps), 1)
    shorter = min(len(reference.steps), len(other.steps))
    divergence = None
    verdict: Verdict = "same"
    if agreed < shorter:
        divergence = _divergence(agreed, reference.steps[agreed], other.steps[agreed])
        verdict = "tie" if is_tie(divergence, tie_gap) else "different"
    elif len(reference.steps) != len(other.steps):
        # one ended where the other went on, though both were told to ignore the end
        verdict = "different"
    return PromptResult(
        number=number,
        prompt_tokens=prompt_tokens,
        verdict=verdict,
        agreed=agreed,
        length=length,
        divergence=divergence,
        mean_logprob_error=sum(errors) / len(errors) if errors else None,
        max_logprob_error=max(errors) if errors else None,
    )


def is_tie(divergence: Divergence, tie_gap: float) -> bool:
    """Whether the two tokens are closer than ``tie_gap`` in one server, than twice in the other."""
    apart = [
        math.inf if other is None else own - other
        for own, other in zip(divergence.own, divergence.others, strict=True)
    ]
    return min(apart) < tie_gap and max(apart) < 2 * tie_gap


def tie_gap_of(dtypes: Sequence[str | None]) -> float:
    """The bound for servers of these dtypes: that of the coarsest; unknown counts as bf16."""
    return max(TIE_GAPS.get(dtype or "", DEFAULT_TIE_GAP) for dtype in dtypes)


def _agreed(first: Sequence[int], second: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return place
    return min(len(first), len(second))


def _divergence(step: int, reference: Step, other: Step) -> Divergence:
    return Divergence(
        step=step,
        tokens=(reference.token, other.token),
        own=(reference.logprob, other.logprob),
        others=(reference.top.get(other.token), other.top.get(reference.token)),
        gaps=(reference.gap, other.gap),
    )
