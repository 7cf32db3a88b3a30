"""Requests of many lengths: drawn log-normal, or a trace's, made to fit a context. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from harness.errors import OptionError
from harness.plan.traces import Requests, TraceRow

#: What happens to a request whose prompt and answer together are longer than the context.
OverLength = Literal["scale", "clip", "skip"]

DEFAULT_LENGTHS = "lognormal:192,0.9,96,0.7"
_EXPECTED = (
    "lognormal:PROMPT,SIGMA,OUTPUT,SIGMA, medians in tokens and sigmas up to 3, such as "
    + DEFAULT_LENGTHS
)
_MOST_SIGMA = 3.0
_MOST_MEDIAN = 10_000_000.0


@dataclass(frozen=True)
class LogNormal:
    """Prompt and answer lengths drawn apart, each log-normal: exp(N(ln median, sigma))."""

    prompt_median: float
    prompt_sigma: float
    output_median: float
    output_sigma: float

    def rows(self, count: int, seed: int) -> tuple[TraceRow, ...]:
        """So many requests; the same for the same seed."""
        draw = random.Random(f"lengths/{seed}")  # noqa: S311 - not for secrets

        def tokens(middle: float, sigma: float) -> int:
            return max(1, round(draw.lognormvariate(math.log(middle), sigma)))

        return tuple(
            TraceRow(
                0.0,
                tokens(self.prompt_median, self.prompt_sigma),
                tokens(self.output_median, self.output_sigma),
            )
            for _ in range(count)
        )


@dataclass(frozen=True)
class Mix(Requests):
    """Requests that fit a context."""

    rows: tuple[TraceRow, ...]
    context_tokens: int
    factor: float
    shortened: int
    skipped: int

    @property
    def mean_tokens(self) -> float:
        """Of prompt and answer together."""
        return fmean(row.tokens for row in self.rows)


def parse_lengths(text: str, option: str = "--lengths") -> LogNormal:
    """Read ``lognormal:192,0.9,96,0.7``; raises OptionError."""
    name, colon, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",")]
    if name != "lognormal" or not colon or len(parts) != 4:
        raise OptionError(option, text, _EXPECTED)
    numbers = [_number(part) for part in parts]
    medians, sigmas = numbers[::2], numbers[1::2]
    good = all(0 < value <= _MOST_MEDIAN for value in medians)
    if not good or not all(0 <= value <= _MOST_SIGMA for value in sigmas):
        raise OptionError(option, text, _EXPECTED)
    return LogNormal(*numbers)


def fit(rows: Sequence[TraceRow], context_tokens: int, over_length: OverLength) -> Mix:
    """Make prompt + answer of every request fit; ``rows`` may come out empty with ``skip``.

    scale  multiplies all lengths by one factor, at most 1, so that the longest fits: every
           proportion stays.
    clip   cuts the prompt to what the answer leaves, and an answer of more than half of the
           context to what the prompt leaves, or to that half.
    skip   leaves the request out.

    Shared blocks are dropped: a mix shares nothing.
    """
    longest = max((row.tokens for row in rows), default=1)
    factor = min(1.0, context_tokens / longest) if over_length == "scale" else 1.0
    kept = [row for row in rows if over_length != "skip" or row.tokens <= context_tokens]
    made = [_fitted(row, factor, context_tokens) for row in kept]
    changed = sum(_lengths(old) != _lengths(new) for old, new in zip(kept, made, strict=True))
    return Mix(tuple(made), context_tokens, factor, changed, len(rows) - len(kept))


def _fitted(row: TraceRow, factor: float, context_tokens: int) -> TraceRow:
    prompt = max(1, math.floor(row.prompt_tokens * factor))
    output = max(1, math.floor(row.output_tokens * factor))
    # what rounding up to a token each makes too long is cut, too
    if prompt + output > context_tokens:
        output = min(output, max(1, context_tokens // 2, context_tokens - prompt))
        prompt = min(prompt, context_tokens - output)
    return TraceRow(0.0, prompt, output)


def _lengths(row: TraceRow) -> tuple[int, int]:
    return row.prompt_tokens, row.output_tokens


def _number(text: str) -> float:
    """A decimal number; -1 for anything else."""
    plain = text.isascii() and text.replace(".", "", 1).isdecimal() and len(text) <= 20
    return float(text) if plain else -1.0
