"""The options that a knee search has for itself: name -> (default, environment variable, help)."""

from __future__ import annotations

from collections.abc import Mapping

#: ``--loop``
CLOSED, OPEN = "closed", "open"

KNEE_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "loop": (
        CLOSED,
        "KVKNEE_LOOP",
        "closed: how many requests at once does it hold; open: how many per second",
    ),
    "max-concurrency": (
        "512",
        "KVKNEE_MAX_CONCURRENCY",
        "highest level that may be asked for; in an open loop requests in flight at most",
    ),
    "max-request-rate": (
        "64",
        "KVKNEE_MAX_REQUEST_RATE",
        "with --loop open: most requests per second that may be asked for",
    ),
    "attainment": (
        "0.95",
        "KVKNEE_ATTAINMENT",
        "share of the requests that must meet the SLO, from 0.5 to below 1",
    ),
    "budget-minutes": (
        "",
        "KVKNEE_BUDGET_MINUTES",
        "the search ends with what it has after this time; empty: no limit",
    ),
    "min-requests": (
        "20",
        "KVKNEE_MIN_REQUESTS",
        "requests that a level counts before it may be called good or bad",
    ),
    "max-level-seconds": (
        "120",
        "KVKNEE_MAX_LEVEL_SECONDS",
        "a level that is not sure after this time is undecided",
    ),
    "burstiness": (
        "1",
        "KVKNEE_BURSTINESS",
        "with --loop open: shape of the gamma distribution of the gaps; 1 is Poisson, inf: equal "
        "gaps",
    ),
    "warmup-seconds": (
        "5",
        "KVKNEE_WARMUP_SECONDS",
        "with --loop open: requests due in the first seconds of a level are not counted",
    ),
}
#: what a search decides itself, or has no use for
RULED_BY_SEARCH = frozenset({"levels", "repeats", "min-level-seconds", "ramp-up-seconds"})

VERIFY = "verify"
VERIFY_HELP = (
    "restart a server that kvknee up has started on this machine with the flags that were found, "
    "and measure that (default: yes)"
)
