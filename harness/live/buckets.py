"""Upper edges of the live histograms, in nanoseconds.

Six edges per decade (1, 1.5, 2, 3, 5, 7): neighbours lie at most a factor of 1.67 apart, so
a quantile read from the buckets is off by less than that, and the usual limits (50 ms of
TPOT, 500 ms of TTFT) are edges themselves. Each range starts below what a local server with
a tiny model needs and ends above what anybody waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NS_PER_S: Final = 1_000_000_000
NS_PER_US: Final = 1_000
_FINE = (10, 15, 20, 30, 50, 70)
_COARSE = (10, 20, 50)


def _edges(steps: Sequence[int], first_us: int, last_us: int) -> tuple[int, ...]:
    """All edges of the form step x 10^n from ``first_us`` to ``last_us``, in nanoseconds."""
    found: list[int] = []
    decade = 1
    while decade <= last_us:
        found += [step * decade // 10 * NS_PER_US for step in steps if step * decade % 10 == 0]
        decade *= 10
    return tuple(edge for edge in found if first_us * NS_PER_US <= edge <= last_us * NS_PER_US)


#: 2 ms to 100 s
TTFT_NS: Final = _edges(_FINE, 2_000, 100_000_000)
#: 0.5 ms to 2 s
TPOT_NS: Final = _edges(_FINE, 500, 2_000_000)
ITL_NS: Final = TPOT_NS
#: 20 ms to 700 s
E2E_NS: Final = _edges(_FINE, 20_000, 700_000_000)
#: 10 us to 1 s, three per decade: it says whether the client keeps up, not by how much
LATENESS_NS: Final = _edges(_COARSE, 10, 1_000_000)

#: what each histogram of a snapshot is counted in
EDGES_NS: Final = {
    "ttft": TTFT_NS,
    "tpot": TPOT_NS,
    "itl": ITL_NS,
    "e2e": E2E_NS,
    "send_lateness": LATENESS_NS,
}
