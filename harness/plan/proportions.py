"""How sure a share is: Wilson's interval, and how strongly a share speaks against a threshold.

Wilson (1927): the shares p from which the one seen lies no further than z standard errors,
sqrt(p (1 - p) / n). Unlike p -+ z sqrt(p (1 - p) / n) it is right for shares near 0 and 1,
where the levels before and after a knee lie, and n need not be whole.
"""

from __future__ import annotations

import math

#: of the normal distribution: 95 % lie within
Z_95 = 1.959964
#: Samples of the queue that count as independent in the time of one request. The memory of
#: many requests, each growing from its start to its end and then replaced, is a sum of
#: saw-teeth of random phase. Its correlation after the share x of a request's time is
#: 1 - 6 x + 6 x^2 (the Bernoulli polynomial B2), which is 0 at x = 0.21.
LOOKS_PER_ROUND = 5.0


def wilson(share: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """The interval (low, high) of a share seen in ``n`` independent samples; (0, 1) for none."""
    if n <= 0:
        return 0.0, 1.0
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def strength(share: float, n: float, threshold: float) -> float:
    """Twice the log likelihood by which a share in ``n`` samples favours itself over a threshold.

    0 where they are equal. Beyond 3.84 the threshold is out at 95 %, beyond 6.63 at 99 %
    (Wilks: chi-square of one degree of freedom).
    """
    apart = 0.0
    for seen, claimed in ((share, threshold), (1 - share, 1 - threshold)):
        if seen > 0:
            apart += seen * math.log(seen / claimed)
    return 2.0 * max(n, 0.0) * apart


def count_strength(seen: float, expected: float) -> float:
    """The same for a count (Poisson) beyond an expected one; 0 where it is not beyond."""
    if seen <= expected:
        return 0.0
    return 2.0 * (seen * math.log(seen / expected) - (seen - expected))


def independent(n: float, alike: float) -> float:
    """How many independent samples n samples are worth that resemble their neighbours.

    ``alike`` is the correlation of each with the next, as in a process of first order:
    n (1 - r) / (1 + r).
    """
    kept = min(max(alike, 0.0), 0.95)
    return n * (1 - kept) / (1 + kept)
