"""The requests beyond p99 of a level, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TailFigure = Literal["TTFT", "TPOT"]
#: ``client``       the client's or a buffer's doing: shared reads, buffered streams, lateness
#: ``long_prompt``  more tokens to read than usual
#: ``preemption``   the server took it, or another, out of the batch
#: ``memory``       it waited, or stood, while the KV pool was full
#: ``queue``        it waited for its turn
#: ``prefill``      the prompts of others were read meanwhile
TailCause = Literal[
    "client", "long_prompt", "preemption", "memory", "queue", "prefill", "not_explained"
]


@dataclass(frozen=True)
class TailRow:
    """One request beyond p99."""

    figure: TailFigure
    user: int
    #: monotonic, as the record has it
    sent_s: float
    #: from the level's start
    after_s: float
    value_s: float
    cause: TailCause
    evidence: str


@dataclass(frozen=True)
class TailOf:
    """The tail of one figure; its rows begin with the worst."""

    figure: TailFigure
    #: counted successes that have the figure, their median and p99
    n: int
    p50_s: float
    p99_s: float
    #: requests beyond p99, and how many of them (the worst) were explained
    beyond: int
    explained: int
    #: of the explained, by cause, the most frequent first
    causes: tuple[tuple[TailCause, int], ...]
    rows: tuple[TailRow, ...]
    #: n is too small for a p99
    thin: bool


@dataclass(frozen=True)
class Tail:
    """Both tails of one cell."""

    figures: tuple[TailOf, ...]
