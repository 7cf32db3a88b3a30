"""Quantiles of Student's t, with the standard library alone. Pure.

The distribution function is an incomplete beta function, computed by its continued fraction
(Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.5.8 and 26.7.1).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
_STEPS = 500
#: beyond so many degrees of freedom t is the normal distribution, to four digits
_NORMAL_DF = 1e5


def normal_quantile(share: float) -> float:
    """The value below which ``share`` of a standard normal lies; 0 < share < 1."""
    return NormalDist().inv_cdf(share)


def t_tail(value: float, df: float) -> float:
    """P(T > value) for value >= 0 and df > 0."""
    return 0.5 * _incomplete_beta(df / 2.0, 0.5, df / (df + value * value))


@lru_cache(maxsize=4096)
def t_quantile(tail: float, df: float) -> float:
    """The value that T exceeds with probability ``tail`` (0 < tail < 0.5), by bisection."""
    if df >= _NORMAL_DF:
        return normal_quantile(1.0 - tail)
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, high * 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if t_tail(middle, df) > tail else (low, middle)
    return (low + high) / 2.0


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log_front) * _fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), by Lentz's method."""
    c, d = 1.0, 1.0 / _kept(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _kept(1.0 + term * d)
            c = _kept(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def _kept(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
