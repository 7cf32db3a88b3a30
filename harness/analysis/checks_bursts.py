"""Whether a level's rates depend on where its window cut a burst of requests.

requests/s counts the requests that end in the window. Users of a closed loop that started
together go on ending together, burst after burst; one burst more or less inside the window
then changes the count by as many requests as a burst has.
"""

from __future__ import annotations

import numpy as np

from harness.analysis.summary_types import CellFigures
from harness.analysis.table import Floats
from harness.manifest import Manifest
from harness.records import Finding

#: Requests end together when they do so within this share of their median E2E.
TOGETHER_SHARE = 0.1
#: Users go in step when at least this share of them ended together: 32 that are spread evenly
#: end 3 at a time, and by chance some 10.
IN_STEP_SHARE = 0.5
#: Of fewer users so many end together by chance.
LEAST_USERS = 8
#: A burst of this share of all requests that ended is worth saying: fewer than ten bursts.
EDGE_SHARE = 0.1


def most_together(ended_s: Floats, e2e_s: Floats) -> int:
    """The most requests that ended within ``TOGETHER_SHARE`` of their median E2E; both [n]."""
    known = e2e_s[~np.isnan(e2e_s)]
    if not known.size:
        return 0
    ends = np.sort(ended_s)
    width_s = TOGETHER_SHARE * float(np.median(known))
    behind = np.searchsorted(ends, ends + width_s, side="right")
    return int((behind - np.arange(ends.size)).max())


def burst_findings(figures: CellFigures, manifest: Manifest) -> list[Finding]:
    """A note where the window held few bursts; an open loop's users have no step."""
    rates, users = figures.throughput, figures.window.users
    burst, ended = rates.ended_together, rates.requests_ended
    if manifest.workload.loop != "closed" or users < LEAST_USERS or not ended:
        return []
    if burst < IN_STEP_SHARE * users or burst / ended < EDGE_SHARE:
        return []
    return [
        Finding(
            code="few_bursts",
            severity="note",
            text=f"The users go in step: of the {ended:,} requests that ended in the window up "
            f"to {burst:,} ended together. One burst more or less at its edge is worth "
            f"{burst / ended * 100:.0f} % of requests/s and goodput.",
            remedy="Spread the users (--ramp-up-seconds, about the time of a request) or ask "
            "for more (--min-requests, twenty per user); tokens/s depend less on the edge.",
            cell=figures.cell,
        )
    ]
