"""What the knee search is told of a level, and what it answers. Plain values, no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: the variant of the level that is measured again after a restart with what was found
VERIFIED = "verified"
#: why a level is bad
Cause = Literal["kv_memory", "scheduler_limit", "compute", "failures", "client", "unknown"]
#: ``capacity``: requests are kept out of the batch; ``slo``: too few requests meet the SLO
SearchGoal = Literal["capacity", "slo"]
LevelState = Literal["good", "bad", "undecided"]
#: ``go_on``: not sure yet; ``enough``: it is decided; ``collapse``: far beyond the knee, stop
#: at once; ``limit``: the level has had its time and is still not decided
Decision = Literal["go_on", "enough", "collapse", "limit"]
#: ``found``: a bracket of the wanted resolution; ``not_reached``: good up to the highest level
#: that may be asked; ``below_first``: already one user is too many; ``undecided``: a level that
#: matters could not be decided; ``budget``: time ran out before the bracket was narrow enough
FoundStatus = Literal["found", "not_reached", "below_first", "undecided", "budget"]


@dataclass(frozen=True)
class LevelVerdict:
    """One level's say about one goal, after it has ended."""

    level: float
    goal: SearchGoal
    state: LevelState
    #: the deciding quantity. capacity: share of the samples in which requests are kept out;
    #: slo: share of the requests that meet it. None where it was not measured
    share: float | None
    #: its 95 % interval
    low: float | None
    high: float | None
    #: on which side of it the interval must lie
    threshold: float
    #: samples (capacity) or requests (slo) behind the share
    n: int
    #: of a bad level; None for a good one
    cause: Cause | None
    #: what speaks for the cause, and what against it
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    #: how strongly the figures speak for a bad level (above 0) or a good one (below): twice the
    #: log likelihood against the threshold; 3.84 is 95 %
    strength: float = 0.0
    #: independent samples that the interval counts with
    effective: float | None = None
    #: undecided because its requests took longer than the level had: so would those above it
    too_slow: bool = False

    @property
    def over_saturated(self) -> bool:
        """Bad because more requests came in than ended: no share of samples was measured."""
        bad = self.goal == "capacity" and self.state == "bad" and self.cause != "failures"
        return bad and self.low is None

    @property
    def ceiling(self) -> bool:
        """Undecided, and whatever lies above it would be, too."""
        return self.state == "undecided" and (self.too_slow or self.cause == "client")


@dataclass(frozen=True)
class SoFar:
    """What is known inside a running level, cumulated since its window opened."""

    elapsed_s: float
    ok: int
    failed: int
    #: requests that met the SLO; None without one
    met: int | None
    #: scrapes in the window, and those that say that requests are kept out
    samples: int
    kept_out: int
    preemptions: float
    in_flight_rising: bool
    #: an open loop: so clearly that nothing else needs to say so
    overloaded: bool = False


@dataclass(frozen=True)
class Searched:
    """A backend whose knees are looked for."""

    name: str
    mode: str
    #: the predicted last good level; None without a prediction
    start: float | None = None
    goals: tuple[SearchGoal, ...] = ("capacity",)


@dataclass(frozen=True)
class Found:
    """What the search says of one backend and one goal.

    What is held is ``last_good``. ``low`` and ``high`` are a 95 % interval of the true last
    good level: None below means that not even the lowest level is sure to be good, None above
    that no level measured is sure to be bad.
    """

    backend: str
    goal: SearchGoal
    status: FoundStatus
    last_good: float | None
    first_bad: float | None
    low: float | None
    high: float | None
    cause: Cause | None
    #: of the first bad level; without one, of the last good level
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    #: every level measured, by rising level; repeats of one level are put together
    levels: tuple[LevelVerdict, ...] = ()
