"""What ``kvknee equivalence`` is asked, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from harness.errors import OptionError
from harness.load.settings import BackendAddress, parse_backends, read_api_key

MOST_TOKENS, MOST_PROMPTS, MOST_NEIGHBOURS = 2**20, 1000, 256


@dataclass(frozen=True)
class EquivalenceSettings:
    """One comparison; the first backend is the reference."""

    backends: tuple[BackendAddress, ...]
    #: None when each server has one model
    model: str | None
    lengths: tuple[int, ...]
    #: prompts of each length
    prompts: int
    output_tokens: int
    #: requests in flight at once
    neighbours: int
    seed: int
    #: None: by the servers' dtypes
    tie_gap: float | None
    timeout_s: float
    api_key: str | None = field(default=None, repr=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(self.lengths) + self.output_tokens


def read_settings(
    *,
    backends: str,
    model: str | None,
    prompt_tokens: str,
    prompts: int,
    output_tokens: int,
    neighbours: int,
    seed: int,
    tie_gap: str | None,
    timeout_s: float,
    api_key: str | None,
) -> EquivalenceSettings:
    """Check everything; raises UsageError for the first that is wrong."""
    named = parse_backends(backends)
    if len(named) < 2:
        raise OptionError("--backends", backends, "two servers or more: a=URL,b=URL")
    return EquivalenceSettings(
        backends=named,
        model=model,
        lengths=_lengths(prompt_tokens),
        prompts=prompts,
        output_tokens=output_tokens,
        neighbours=neighbours,
        seed=seed,
        tie_gap=_gap(tie_gap),
        timeout_s=timeout_s,
        api_key=read_api_key(api_key or ""),
    )


def _lengths(text: str) -> tuple[int, ...]:
    expected = f"numbers of tokens from 8 to {MOST_TOKENS:,}, such as 16,128,512"
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
        raise OptionError("--prompt-tokens", text, expected)
    lengths = tuple(int(part) for part in parts)
    if min(lengths) < 8 or max(lengths) > MOST_TOKENS or len(set(lengths)) < len(lengths):
        raise OptionError("--prompt-tokens", text, f"{expected}, each once")
    return lengths


def _gap(text: str | None) -> float | None:
    if text is None or text == "auto":
        return None
    try:
        gap = float(text)
    except ValueError:
        gap = math.nan
    if not 0 <= gap <= 100:
        raise OptionError("--tie-gap", text, "auto, or a difference of logits from 0 to 100")
    return gap
