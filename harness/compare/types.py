"""What a comparison of two runs consists of; seconds and bytes, None where absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.analysis.fit_types import Interval
from harness.analysis.summary_types import RunSummary
from harness.analysis.table import Bools, Floats
from harness.records import CellKey, Loop

#: ``ratio``: B / A; ``difference``: B - A, of shares that may be 0
Kind = Literal["ratio", "difference"]
#: ``unsure``: one of the two is not trusted or absent, so that nothing is said
Outcome = Literal["better", "worse", "same", "unsure"]
MetricName = Literal[
    "ttft_p50_s",
    "ttft_p95_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "tpot_p99_s",
    "e2e_p50_s",
    "e2e_p95_s",
    "output_tokens_per_s",
    "kv_bytes_per_token",
    "failure_share",
]


@dataclass(frozen=True)
class Metric:
    """One figure of a cell, and which way is better."""

    name: MetricName
    kind: Kind = "ratio"
    lower_is_better: bool = True
    #: of a percentile: of what, and which
    latency: str | None = None
    p: int | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """What one cell was measured by, ready to be drawn from again.

    Request arrays are over the counted requests that ended, in the order of their sending,
    shape [n]; NaN where a request has no such figure. ``used_bytes`` and ``token_places`` (tokens
    held, rounded up to blocks or slots) are those of the scrapes at which server and client count
    the same requests, shape [m].
    """

    ok: Bools
    latency: Mapping[str, Floats]
    tokens: Floats
    #: seconds from a request's sending to the next of its user, as far as the records tell
    taken_s: Floats
    used_bytes: Floats
    token_places: Floats
    users: int
    loop: Loop


@dataclass(frozen=True)
class RunSide:
    """One of the two runs: its summary, and the samples of its cells."""

    name: str
    summary: RunSummary
    samples: Mapping[CellKey, Sample]


@dataclass(frozen=True)
class Mismatch:
    """One fact that differs; ``refuses``: the figures then answer different questions."""

    fact: str
    a: str
    b: str
    refuses: bool


@dataclass(frozen=True)
class Change:
    """One figure of one cell in both runs."""

    metric: Metric
    a: float | None
    b: float | None
    #: B / A or B - A with its 95 % interval; None where a figure is absent or A is 0
    change: Interval | None
    outcome: Outcome
    #: why a figure is not trusted, in words; empty when both are
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellPair:
    """One cell that both runs measured; ``cell`` is A's key."""

    cell: CellKey
    n_a: int
    n_b: int
    changes: tuple[Change, ...]
    #: why the whole cell is not trusted
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    name_a: str
    name_b: str
    loop: Loop
    mismatches: tuple[Mismatch, ...]
    #: compared although facts differ that would refuse it
    forced: bool
    pairs: tuple[CellPair, ...]
    only_a: tuple[CellKey, ...]
    only_b: tuple[CellKey, ...]
    #: what else there is to say of the two
    notes: tuple[str, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """Figures with that outcome."""
        return sum(change.outcome == outcome for pair in self.pairs for change in pair.changes)
