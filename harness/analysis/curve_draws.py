"""What all fits of a curve to rates over levels share: scaling, draws, interval. Pure."""

from __future__ import annotations

import math

import numpy as np

from harness.analysis.table import Floats

DRAWS = 500


def scaled(levels: Floats, rates: Floats, errors: Floats) -> tuple[Floats, Floats, Floats]:
    """Levels and rates as shares of their largest, with the errors, all by rising level.

    Draws must not depend on the order.
    """
    order = np.argsort(levels)
    return levels[order] / levels.max(), rates[order] / rates.max(), errors[order]


def moves(residuals: Floats, errors: Floats, terms: int, seed: int) -> Floats:
    """How far each draw moves each rate, relative, shape [draws, levels].

    By a residual drawn at random with its sign, widened for the ``terms`` that the fit has
    taken, and by the rate's own error.
    """
    generator = np.random.default_rng(seed)
    n = residuals.size
    free = max(1, n - terms)
    picked = generator.integers(0, n, (DRAWS, n))
    sign = generator.choice((-1.0, 1.0), (DRAWS, n))
    drawn = sign * residuals[picked] * math.sqrt(n / free)
    return np.asarray(drawn + generator.standard_normal((DRAWS, n)) * errors, dtype=np.float64)


def middle(knees: Floats) -> tuple[float, float]:
    """The 95 % interval of the draws' knees, by rank: beside infinity nothing interpolates."""
    ranked = np.sort(knees)
    return float(ranked[math.floor(0.025 * DRAWS)]), float(ranked[math.ceil(0.975 * DRAWS) - 1])
