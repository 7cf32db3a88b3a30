"""Several verdicts of one level put together, and the knee's interval from all levels. Pure.

Interval: were K the true last good level, then every level up to K would be good and every one
above bad. The verdicts that say otherwise would be wrong by chance, and each states how
strongly it speaks (``strength``: twice a log likelihood). Their sum is what K has against it,
D(K); the interval holds every K whose D is no more than CUT above the least. Between two
levels that were measured nothing tells the Ks apart, so they all belong to it.

CUT is that of 99 %, not of 95 %: a level is stopped when its figures look decided, which lets
5 % err more often than in 5 %, and several levels bound one knee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.plan.proportions import wilson
from harness.plan.search_types import LevelState, LevelVerdict

#: chi-square of one degree of freedom, 99 %
CUT = 6.635
#: the same for one level, 95 %
_DECIDED = 3.841


def put_together(repeats: Sequence[LevelVerdict]) -> LevelVerdict:
    """One verdict from the repeats of one level and goal; of one it is that one.

    Shares are weighted with their independent samples, strengths add up. A level that a repeat
    calls bad for something else than its share (preemptions, refusals) stays bad.
    """
    if len(repeats) == 1:
        return repeats[0]
    forced = next((i for i in repeats if i.state == "bad" and not _by_share(i)), None)
    counted = [item for item in repeats if item.effective and item.share is not None]
    if not counted:
        return forced or repeats[-1]
    effective = sum(item.effective or 0.0 for item in counted)
    share = sum((i.share or 0.0) * (i.effective or 0.0) for i in counted) / effective
    low, high = wilson(share, effective)
    # one that failed may have no share, but speaks all the same
    alone = forced.strength if forced is not None and forced.effective is None else 0.0
    total = sum(item.strength for item in counted) + alone
    firmest = max(counted, key=lambda item: abs(item.strength))
    bad = forced is not None or total > _DECIDED
    state: LevelState = "bad" if bad else "good" if total < -_DECIDED else "undecided"
    blamed = forced or next((i for i in counted if i.strength > 0), firmest)
    shown = blamed if state == "bad" else firmest
    return replace(
        shown,
        state=state,
        share=share,
        low=low,
        high=high,
        n=sum(item.n for item in counted),
        cause=None if state == "good" else shown.cause,
        strength=total,
        effective=effective,
    )


def _by_share(verdict: LevelVerdict) -> bool:
    """Whether the interval of a bad level's share says so."""
    if verdict.low is None or verdict.high is None:
        return False
    if verdict.goal == "slo":
        return verdict.high < verdict.threshold
    return verdict.low > verdict.threshold


def knee_interval(levels: Sequence[LevelVerdict]) -> tuple[float | None, float | None]:
    """The lowest and the highest level that may be the last good one, of those measured.

    ``levels`` rise, each once. Below None: even the lowest may be bad. The second is a level
    measured too: the knee lies below the level that follows it; None where none follows.
    """
    against = [sum(max(item.strength, 0.0) for item in levels[:k]) for k in range(len(levels) + 1)]
    for k in range(len(levels) + 1):
        against[k] += sum(max(-item.strength, 0.0) for item in levels[k:])
    least = min(against)
    possible = [k for k, much in enumerate(against) if much <= least + CUT]
    low = levels[possible[0] - 1].level if possible[0] else None
    high = levels[possible[-1]].level if possible[-1] < len(levels) else None
    return low, high
