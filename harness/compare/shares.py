"""The difference of two shares with its interval, right for shares of 0 as well.

Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10), of two Wilson
intervals. Requests count as independent of each other.
"""

from __future__ import annotations

import math

from harness.analysis.fit_types import Interval
from harness.plan.proportions import wilson


def share_difference(hits_a: int, n_a: int, hits_b: int, n_b: int) -> Interval:
    """B's share less A's, each of ``n`` above 0."""
    a, b = hits_a / n_a, hits_b / n_b
    low_a, high_a = wilson(a, n_a)
    low_b, high_b = wilson(b, n_b)
    return Interval(
        b - a,
        b - a - math.hypot(b - low_b, high_a - a),
        b - a + math.hypot(high_b - b, a - low_a),
    )
