"""Which part of a trace is replayed: cut to a window, scaled in time, capped in length. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.plan.traces import Requests, TraceRow

#: Prompt tokens that one of Mooncake's hash ids stands for.
BLOCK_TOKENS = 512
#: What happens to a request that is longer than a cap.
OverLength = Literal["clip", "scale", "skip"]
#: More than any request has.
_NO_CAP = 2**40


@dataclass(frozen=True)
class Selection:
    """Which part of a trace is replayed, and how."""

    #: of the trace's own time; None: to its end
    start_s: float = 0.0
    end_s: float | None = None
    #: 0.5 is twice as fast
    time_scale: float = 1.0
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    over_length: OverLength = "clip"


@dataclass(frozen=True)
class Replay(Requests):
    """The requests to make."""

    rows: tuple[TraceRow, ...]
    #: of the replayed part, in scaled time
    length_s: float
    #: prompt tokens that one block id stands for here
    block_tokens: int
    #: requests made shorter, and left out, because of a cap
    shortened: int
    skipped: int

    @property
    def rate_rps(self) -> float:
        """Mean requests per second, to six digits; of a single moment: all in one second."""
        return float(f"{len(self.rows) / (self.length_s or 1.0):.6g}")

    @property
    def shares_prefixes(self) -> bool:
        """Whether its prompts have blocks that others may have too."""
        return any(row.blocks for row in self.rows)


def select(rows: Sequence[TraceRow], asked: Selection) -> Replay:
    """Cut, scale and cap a trace; ``rows`` of the result is empty when nothing is left.

    clip   cuts what is longer; the blocks that are kept keep their length, so what two
           prompts share at their start they still share.
    scale  makes all prompts (or all answers) shorter by one factor, the longest as long as
           the cap, and the blocks with them: every proportion stays.
    skip   leaves out what is longer.
    """
    end_s = math.inf if asked.end_s is None else asked.end_s
    inside = [row for row in rows if asked.start_s <= row.at_s < end_s]
    last_s = asked.end_s if asked.end_s is not None else (rows[-1].at_s if rows else 0.0)
    moved = [row._replace(at_s=(row.at_s - asked.start_s) * asked.time_scale) for row in inside]
    kept, shortened, block_tokens = _capped(moved, asked)
    return Replay(
        rows=tuple(kept),
        length_s=max(0.0, last_s - asked.start_s) * asked.time_scale,
        block_tokens=block_tokens,
        shortened=shortened,
        skipped=len(moved) - len(kept),
    )


def _capped(rows: Sequence[TraceRow], asked: Selection) -> tuple[list[TraceRow], int, int]:
    """(rows, how many were made shorter, tokens of a block)."""
    prompt_cap = asked.max_prompt_tokens or _NO_CAP
    output_cap = asked.max_output_tokens or _NO_CAP
    if asked.over_length == "skip":
        fits = [
            row
            for row in rows
            if row.prompt_tokens <= prompt_cap and row.output_tokens <= output_cap
        ]
        return fits, 0, BLOCK_TOKENS
    factors = (1.0, 1.0)
    if asked.over_length == "scale" and rows:
        factors = (
            min(1.0, prompt_cap / max(row.prompt_tokens for row in rows)),
            min(1.0, output_cap / max(row.output_tokens for row in rows)),
        )
    made = [
        row._replace(
            prompt_tokens=min(prompt_cap, max(1, round(row.prompt_tokens * factors[0]))),
            output_tokens=min(output_cap, max(1, round(row.output_tokens * factors[1]))),
        )
        for row in rows
    ]
    shortened = sum(
        (old.prompt_tokens, old.output_tokens) != (new.prompt_tokens, new.output_tokens)
        for old, new in zip(rows, made, strict=True)
    )
    return made, shortened, max(1, round(BLOCK_TOKENS * factors[0]))
