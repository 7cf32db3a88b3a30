"""Do a level's requests fail more often than the run allows, and is that the server's doing? Pure.

Such a level holds nothing, whatever its queue shows: a proxy that answers 429 keeps it empty. One
request that fails by chance must not end a search, so the 95 % interval (Wilson) of the share
that failed has to lie above what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.looks import at_most_looks
from harness.analysis.summary_types import CellFigures, Counts
from harness.kv.units import counted
from harness.plan.proportions import strength, wilson
from harness.plan.sequential import FAILED_SHARE

#: ``--max-failure-rate`` where it is not given
ALLOWED = 0.01
#: what a connection fails with where its own machine has no port or no file left for it: Linux's
#: words for EADDRNOTAVAIL and EMFILE
_OF_CLIENT = frozenset({"Cannot assign requested address", "Too many open files"})


@dataclass(frozen=True)
class Failing:
    """A level of which more requests fail than may."""

    text: str
    #: twice the log likelihood against what is allowed, as a verdict states it
    strength: float
    #: most of them failed on the client's own machine
    by_client: bool


def failing(figures: CellFigures, max_failure_rate: float = ALLOWED) -> Failing | None:
    """What failed, where that is surely more than the run allows; None where it is not.

    A level has too few requests to tell less than one in a hundred, and where half of them fail
    it has collapsed, whatever is allowed.
    """
    allowed = min(max(max_failure_rate, ALLOWED), FAILED_SHARE)
    counts, by_client = figures.counts, _by_client(figures.counts)
    if figures.window.span is None:
        if figures.window.reason != "collapse":
            return None
        return Failing(_before_text(counts), strength(1.0, _failures(counts), allowed), by_client)
    share = counts.failure_share
    if not share:
        return None
    n = at_most_looks(figures, counts.ok + counts.failed)
    if wilson(share, n)[0] <= allowed:
        return None
    return Failing(failed_text(counts), strength(share, n, allowed), by_client)


def fails_most(figures: CellFigures) -> bool:
    """Whether most of the requests that miss the SLO failed."""
    counts, met = figures.counts, figures.throughput.slo_attainment
    missed = (1.0 - (met or 0.0)) * (counts.ok + counts.failed)
    return counts.failed > 0.5 * missed


def failed_text(counts: Counts) -> str:
    """``12 of 40 requests failed: 10 timeout, 2 rejected``."""
    kinds = ", ".join(f"{n} {name}" for name, n in counts.by_class if name != "cancelled")
    return f"{counts.failed} of {counted(counts.ok + counts.failed, 'request')} failed: {kinds}"


def _before_text(counts: Counts) -> str:
    """The same of a level whose window never opened: all failed, and none of them counts."""
    kinds: dict[str, int] = {}
    for error in counts.errors:
        if error.outcome != "cancelled":
            kinds[error.outcome] = kinds.get(error.outcome, 0) + error.count
    said = ", ".join(f"{n} {name}" for name, n in kinds.items())
    return f"no request succeeded before the window opened: {said}"


def _failures(counts: Counts) -> int:
    return sum(error.count for error in counts.errors if error.outcome != "cancelled")


def _by_client(counts: Counts) -> bool:
    own = sum(e.count for e in counts.errors if e.outcome == "connect" and e.text in _OF_CLIENT)
    return own > 0.5 * _failures(counts)
