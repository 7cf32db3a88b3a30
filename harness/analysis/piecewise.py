"""Two straight lines that meet: the throughput knee as a break. Pure.

Rates over levels, both as they are: y = p + q n up to the break, and p + q k + r (n - k) from
there on. For each place of the break the rest is least squares; of places between the second
level and the last but one, ``PLACES`` in each gap, the best one wins (Hudson 1966 solves each gap
by itself; a dense grid gives the same and can be drawn again for all draws at once). Levels are
taken relative to the largest, so no scaling and no order changes the answer.

The break is a throughput knee when the second line's gain over one doubling from it,
r k / y(k), is below the stated gain. Already the first line's gain from the lowest level may be:
then the knee lies below all levels. Else it is not reached, whatever the noise bends.

The interval: seeded draws of the residuals and of each rate's own error, as in ``usl``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.analysis.curve_draws import middle, moves, scaled
from harness.analysis.table import Floats, Ints

#: Levels that two lines and their scatter need: two on each side of the break, and one.
LEAST_LEVELS = 5
#: Places tried between two levels, and in all, so that many levels take no longer.
PLACES, MOST_PLACES = 24, 240
_SEED = 1966
_TERMS = 4
#: of draws x places x levels that are worked on together: some 16 MiB
_MOST_AT_ONCE = 2 * 10**6


@dataclass(frozen=True)
class TwoLines:
    """The fit: where the lines meet, and the rates at the first level, there and at the last."""

    place: float
    corners: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    #: inf: the gain never falls below the limit; 0: it does so from the first level on
    knee: float
    low: float
    high: float
    rms: float


def fit_two_lines(levels: Floats, rates: Floats, errors: Floats, gain: float) -> TwoLines | None:
    """Fit to rates of distinct levels, all of shape [n] and above 0.

    ``errors`` are the rates' own relative errors, 0 where unknown; ``gain`` per doubling is
    that of the knee. None with fewer than ``LEAST_LEVELS`` levels.
    """
    if levels.size < LEAST_LEVELS:
        return None
    x, y, spread = scaled(levels, rates, errors)
    places = _places(x)
    # rates are as sure as they are large: each equation over its rate
    solvers = np.stack([np.linalg.pinv(_columns(x, place) / y[:, None]) for place in places])
    chosen, terms = (item[0] for item in _best(x, y, places, solvers, np.ones((1, y.size))))
    relative = _columns(x, places[chosen]) @ terms / y
    drawn = relative + moves(1.0 - relative, spread, _TERMS, _SEED)
    found, drawn_terms = _best(x, y, places, solvers, drawn)
    knee = float(_knees(x, places[[chosen]], terms[None, :], gain)[0])
    low, high = middle(_knees(x, places[found], drawn_terms, gain))
    scale_x, scale_y = float(levels.max()), float(rates.max())
    ends = np.array([x[0], places[chosen], x[-1]])
    heights = _columns(ends, places[chosen]) @ terms
    corners = [(float(n * scale_x), float(h * scale_y)) for n, h in zip(ends, heights, strict=True)]
    return TwoLines(
        place=float(places[chosen]) * scale_x,
        corners=(corners[0], corners[1], corners[2]),
        knee=knee * scale_x,
        low=min(low, knee) * scale_x,
        high=max(high, knee) * scale_x,
        rms=float(np.sqrt(np.mean((relative - 1.0) ** 2))),
    )


def _places(x: Floats) -> Floats:
    """Where the break is looked for, shape [places]."""
    each = max(2, min(PLACES, MOST_PLACES // x.size))
    steps = np.linspace(0.0, 1.0, each, endpoint=False)
    gaps = [left + (right - left) * steps for left, right in pairwise(x[1:-1])]
    return np.append(np.concatenate(gaps), x[-2])


def _columns(x: Floats, place: float) -> Floats:
    """Columns 1, n up to the break, and n beyond it, shape [n, 3]."""
    return np.stack([np.ones_like(x), np.minimum(x, place), np.maximum(x - place, 0.0)], axis=1)


def _best(
    x: Floats, y: Floats, places: Floats, solvers: Floats, rates: Floats
) -> tuple[Ints, Floats]:
    """The place of the least squares, and its terms, for each row of ``rates``.

    ``rates`` [fits, levels] are relative to ``y``; shapes [fits] and [fits, 3].
    """
    columns = np.stack([_columns(x, place) for place in places]) / y[:, None]
    at_once = max(1, _MOST_AT_ONCE // (places.size * x.size))
    found = [
        _best_of(columns, solvers, rates[start : start + at_once])
        for start in range(0, rates.shape[0], at_once)
    ]
    return np.concatenate([place for place, _ in found]), np.concatenate([t for _, t in found])


def _best_of(columns: Floats, solvers: Floats, rates: Floats) -> tuple[Ints, Floats]:
    terms = np.einsum("pkn,fn->fpk", solvers, rates)
    misses = np.einsum("pnk,fpk->fpn", columns, terms) - rates[:, None, :]
    chosen = np.argmin((misses**2).sum(axis=2), axis=1)
    return chosen, terms[np.arange(rates.shape[0]), chosen]


def _knees(x: Floats, places: Floats, terms: Floats, gain: float) -> Floats:
    """The break where it is a knee; 0 where the first line is flat already, else inf; [fits]."""
    start, rise, after = terms.T
    first, at = start + rise * x[0], start + rise * places
    flat = (rise * x[0] < gain * first) | (first <= 0)
    return np.where(flat, 0.0, np.where(after * places < gain * at, places, np.inf))
