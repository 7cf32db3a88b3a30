"""Which level one goal wants next, in whole steps: gallop until past, then bisect. Pure.

The first bad level is the lowest one found bad, and what counts as good is the highest good one
below it, whatever lies above. A level that cannot be decided is measured once more; after that
it belongs to neither side, and the bracket closes around it. One that was too much for the client
or for its time is a ceiling: what lies above it would not be measured either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.plan.search_types import LevelState

#: a level is measured once, and once more when that left it undecided
MOST_TIMES = 2


@dataclass(frozen=True)
class Known:
    """What is known of one level."""

    state: LevelState
    times: int = 1
    #: undecided because it was too much for the client, or for the level's time: nothing above
    #: it can be measured either
    ceiling: bool = False


@dataclass(frozen=True)
class Bracket:
    """The levels between which the knee lies; None where there is no such level."""

    good: int | None
    bad: int | None
    #: undecided ones between them, rising
    unsure: tuple[int, ...]


def bracket_of(known: Mapping[int, Known]) -> Bracket:
    """The lowest bad level, the highest good one below it, and the undecided between."""
    bad = min((level for level, item in known.items() if item.state == "bad"), default=None)
    good = max(
        (k for k, item in known.items() if item.state == "good" and (bad is None or k < bad)),
        default=None,
    )
    unsure = sorted(
        level
        for level, item in known.items()
        if item.state == "undecided"
        and (good is None or level > good)
        and (bad is None or level < bad)
    )
    return Bracket(good, bad, tuple(unsure))


def step_of(level: int, resolution: float) -> int:
    """The resolution at a level: one step, or a share of the level where that is more."""
    return max(1, int(resolution * level + 1e-9))


def next_level(
    known: Mapping[int, Known], start: int | None, top: int, resolution: float
) -> int | None:
    """The level to measure next, from 1 to ``top``; None when the goal is answered.

    ``start`` is where to begin: from there the distance doubles, upwards or downwards, until
    the knee is passed. Without one the level itself doubles or halves.
    """
    if not known:
        return min(max(1, start or 1), top)
    found = bracket_of(known)
    wanted = _onwards(known, found, start, top, resolution)
    return _again(known, found, resolution) if wanted is None else wanted


def _onwards(
    known: Mapping[int, Known], found: Bracket, start: int | None, top: int, resolution: float
) -> int | None:
    """Another level, where one would narrow the bracket."""
    ceiling = _ceiling(known, found)
    if ceiling is not None:
        return _under(known, found, ceiling, resolution)
    if found.bad is None:
        return _upwards(known, found, start, top, resolution)
    if found.good is None:
        lowest = min(known)
        return None if lowest <= 1 else _below(lowest, start, resolution)
    return _between(known, found.unsure, found.good, found.bad, resolution)


def _ceiling(known: Mapping[int, Known], found: Bracket) -> int | None:
    """The lowest level in the bracket above which nothing can be measured."""
    return next((level for level in found.unsure if known[level].ceiling), None)


def _again(known: Mapping[int, Known], found: Bracket, resolution: float) -> int | None:
    """A level to be measured once more: undecided, or bad although a higher one is good.

    Undecided ones only where nothing else narrows the bracket, and while it is too wide.
    """
    good, bad, ceiling = found.good, found.bad, _ceiling(known, found)
    if good is None or bad is None or bad - good > step_of(good, resolution):
        for level in found.unsure:
            if known[level].times < MOST_TIMES and (ceiling is None or level <= ceiling):
                return level
    if bad is None or known[bad].times >= MOST_TIMES:
        return None
    above = any(k > bad and item.state == "good" for k, item in known.items())
    return bad if above else None


def _upwards(
    known: Mapping[int, Known], found: Bracket, start: int | None, top: int, resolution: float
) -> int | None:
    highest = max(known)
    if highest < top:
        return min(_above(highest, start, resolution), top)
    # the top was not decided: as far as it can be said
    return _under(known, found, found.unsure[0], resolution) if found.unsure else None


def _under(
    known: Mapping[int, Known], found: Bracket, ceiling: int, resolution: float
) -> int | None:
    """A level between the good ones and one that cannot be decided."""
    if found.good is None:
        lowest = min(known)
        return lowest // 2 if lowest > 1 else None
    unsure = tuple(level for level in found.unsure if level < ceiling)
    return _between(known, unsure, found.good, ceiling, resolution)


def _above(highest: int, start: int | None, resolution: float) -> int:
    step = step_of(highest, resolution)
    if start is None or highest < start:
        return max(2 * highest, highest + step)
    return highest + max(step, highest - start)


def _below(lowest: int, start: int | None, resolution: float) -> int:
    if start is None or lowest > start:
        return max(1, lowest // 2)
    return max(1, lowest - max(step_of(lowest, resolution), start - lowest))


def _between(
    known: Mapping[int, Known], unsure: tuple[int, ...], good: int, end: int, resolution: float
) -> int | None:
    """A level between a good one and one that is none; ``unsure`` lie between them."""
    if end - good <= step_of(good, resolution):
        return None
    if not unsure:
        return _middle(good, end, resolution)
    # to decide one that lies in between halves the bracket as another level does
    again = next((level for level in unsure if known[level].times < MOST_TIMES), None)
    if again is not None:
        return again
    low = _middle(good, unsure[0], resolution)
    return low if low is not None else _middle(unsure[-1], end, resolution)


def _middle(low: int, high: int, resolution: float) -> int | None:
    return None if high - low <= step_of(low, resolution) else (low + high) // 2
