"""Faults on demand: which request gets which one follows from the seed and its number. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from harness.errors import OptionError

FaultKind = Literal[
    "reset",
    "stall",
    "truncate",
    "in-band-error",
    "429",
    "503",
    "garbage",
    "slow-headers",
    "empty",
    "redirect",
]
KINDS: tuple[str, ...] = get_args(FaultKind)
#: what each does, for ``--help``
TOLD = {
    "reset": "the connection is reset (RST) after some tokens",
    "stall": "the stream falls silent after some tokens, the connection stays open",
    "truncate": "the connection is closed after some tokens, in mid-answer",
    "in-band-error": "an error event after some tokens, then [DONE]",
    "429": "HTTP 429 with Retry-After",
    "503": "HTTP 503 with Retry-After",
    "garbage": "random bytes after some tokens, then the connection is closed",
    "slow-headers": "the response's head trickles in over a second; the rest is well",
    "empty": "a whole answer without a token",
    "redirect": "HTTP 307 to another path",
}
#: these strike in the middle of an answer
MIDWAY: frozenset[str] = frozenset({"reset", "stall", "truncate", "in-band-error", "garbage"})
#: HTTP status of those that answer without a stream
REFUSALS = {"429": 429, "503": 503, "redirect": 307}


@dataclass(frozen=True)
class Fault:
    """What befalls one request; ``share`` of its chunks have been sent by then."""

    kind: FaultKind
    share: float

    def after_chunks(self, chunks: int) -> int:
        """How many of ``chunks`` are sent before it strikes: one at least, not all but of one."""
        return max(1, min(chunks - 1, round(self.share * chunks)))


@dataclass(frozen=True)
class FaultPlan:
    """Rates by kind, whose sum is at most 1."""

    seed: int = 0
    rates: tuple[tuple[FaultKind, float], ...] = ()

    def of(self, number: int) -> Fault | None:
        """The fault of the request of that number (from 0), or None."""
        if not self.rates:
            return None
        draw = random.Random(f"{self.seed}/fault/{number}")  # noqa: S311 - not for secrets
        place, share = draw.random(), draw.random()
        for kind, rate in self.rates:
            if place < rate:
                return Fault(kind, share)
            place -= rate
        return None


def parse_faults(values: Sequence[str], seed: int, option: str = "--fault") -> FaultPlan:
    """Read ``KIND=RATE`` values; raises OptionError."""
    rates: dict[FaultKind, float] = {}
    for value in values:
        kind, _, text = value.partition("=")
        rate = _rate(text)
        if kind not in KINDS or rate is None:
            expected = f"KIND=RATE with a rate of 0 to 1 and a kind of {', '.join(KINDS)}"
            raise OptionError(option, value, expected)
        if kind in rates:
            raise OptionError(option, value, "each kind once")
        rates[cast("FaultKind", kind)] = rate
    if sum(rates.values()) > 1.0 + 1e-9:
        raise OptionError(option, " ".join(values), "rates whose sum is at most 1")
    return FaultPlan(seed, tuple(rates.items()))


def _rate(text: str) -> float | None:
    try:
        rate = float(text)
    except ValueError:
        return None
    return rate if 0.0 <= rate <= 1.0 else None
