"""The options of closed loops whose requests differ, validated; a mix is fitted to the servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

from harness.errors import OptionError, UsageError
from harness.load.ask_options import OVER_LENGTHS
from harness.load.numbers import MAX_SEED, MAX_TOKENS, decimal, seconds, whole
from harness.load.open_settings import read_trace
from harness.plan.mix import Mix, OverLength, fit, parse_lengths
from harness.plan.row_levels import prompt_at
from harness.plan.traces import TraceRow
from harness.workload import Conversations, LengthMix, SharedPrefix

_MOST_SHARES = 20
_MOST_TURNS = 1_000
_MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class MixAsk:
    """Lengths as given, before they are made to fit."""

    rows: tuple[TraceRow, ...]
    source: str
    sha256: str | None
    over_length: OverLength
    #: None: what the servers can hold
    context_tokens: int | None

    def fitted(self, context_tokens: int) -> tuple[Mix, LengthMix]:
        """The requests, and what the manifest says of them; raises UsageError for none."""
        mix = fit(self.rows, context_tokens, self.over_length)
        if not mix.rows:
            raise UsageError(
                f"--over-length: skip leaves none of {mix.skipped} requests within "
                f"{context_tokens} tokens; expected a longer --context, scale or clip"
            )
        stated = LengthMix(
            source=self.source,
            sha256=self.sha256,
            context_tokens=context_tokens,
            over_length=self.over_length,
            factor=mix.factor,
            requests=len(mix.rows),
            shortened=mix.shortened,
            skipped=mix.skipped,
            mean_tokens=mix.mean_tokens,
        )
        return mix, stated


def read_mix(text: Mapping[str, str]) -> MixAsk:
    """``--trace`` or ``--lengths``, and what makes them fit; raises UsageError."""
    _need_completions(text, "lengths are stated in tokens")
    over = text["over_length"]
    if over not in OVER_LENGTHS:
        raise OptionError("--over-length", over, "scale, clip or skip")
    count = whole("--length-count", text["length_count"], most=_MOST_ROWS)
    context = (
        whole("--context", text["context"], least=2, most=MAX_TOKENS) if (text["context"]) else None
    )
    drawn = parse_lengths(text["lengths"])
    if not text["trace"]:
        rows = drawn.rows(count, whole("--seed", text["seed"], least=0, most=MAX_SEED))
        # one long draw would make all others shorter
        return MixAsk(rows, text["lengths"], None, "clip", context)
    rows, sha256 = read_trace(text["trace"])
    name = Path(text["trace"]).name
    return MixAsk(rows[:count], name, sha256, cast("OverLength", over), context)


def smallest_context(asked: MixAsk, stated: Iterable[tuple[str, int | None]]) -> int:
    """The context that all backends, as (name, max_model_len), can hold; raises UsageError."""
    if asked.context_tokens is not None:
        return asked.context_tokens
    found = list(stated)
    for name, length in found:
        if length is None:
            raise UsageError(
                f"--context: none given, and {name} does not state its max_model_len; expected "
                "the most tokens of a prompt and its answer"
            )
    return min(length for _, length in found if length is not None)


def read_prefix(text: Mapping[str, str]) -> SharedPrefix:
    """``--prefix-tokens`` and ``--reuse``; raises OptionError."""
    _need_completions(text, "the system prompt is made of token ids")
    return SharedPrefix(
        prefix_tokens=whole("--prefix-tokens", text["prefix_tokens"], most=MAX_TOKENS),
        reuse=parse_shares(text["reuse"]),
    )


def parse_shares(text: str, option: str = "--reuse") -> tuple[float, ...]:
    """Read ``0,0.5,0.9``: rising shares, 0 to 1; raises OptionError."""
    shares = [decimal(part.strip()) for part in text.split(",")]
    known = [share for share in shares if share is not None and share <= 1]
    rising = all(a < b for a, b in pairwise(known))
    if len(known) < len(shares) or not rising or len(known) > _MOST_SHARES:
        raise OptionError(
            option, text, f"rising shares between 0 and 1 such as 0,0.9, at most {_MOST_SHARES}"
        )
    return tuple(known)


def read_chat(text: Mapping[str, str]) -> Conversations:
    """``--turns`` and what a turn is; raises OptionError."""
    _need_completions(text, "a history is sent as token ids")
    return Conversations(
        system_tokens=whole("--system-tokens", text["system_tokens"], least=0, most=MAX_TOKENS),
        turns=whole("--turns", text["turns"], most=_MOST_TURNS),
        user_tokens=whole("--user-tokens", text["user_tokens"], most=MAX_TOKENS),
        think_s=seconds("--think-time", text["think_time"], zero=True),
    )


def usual_prompt(asked: Conversations, output_tokens: int) -> int:
    """Prompt tokens of the turn in the middle: what a table can name the conversations by."""
    return prompt_at(asked, output_tokens, (asked.turns + 1) // 2)


def _need_completions(text: Mapping[str, str], why: str) -> None:
    if text["endpoint"] != "completions":
        raise OptionError("--endpoint", text["endpoint"], f"completions: {why}")
