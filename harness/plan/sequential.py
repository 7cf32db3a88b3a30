"""When a running level may end: as soon as it is decided, has collapsed, or has had its time.

A level is decided when the 95 % interval (Wilson) of its deciding quantity excludes the
threshold. For the SLO that is the share of the requests that met it. For the capacity it is
the share of the scrapes in which requests are kept out. Scrapes that follow each other within
a request's time mostly see the same requests wait, and requests of one time share its fate (a
burst of prompts slows all that run). So both count as no more than ``LOOKS_PER_ROUND``
independent ones per request's time; that time follows from Little's law: users x elapsed /
ended, so the level has lasted for ended / users of it.

The interval is looked at again and again, so a level that lies at the threshold itself is
decided by chance more often than in 5 % of the cases. That is why a level has a floor, and why
the search's own interval asks for more than 95 % of a single level (``knee_interval``).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.plan.proportions import LOOKS_PER_ROUND, wilson
from harness.plan.search_types import Decision, SearchGoal, SoFar

#: a level is limited where requests are kept out for more than this share of the time
KEPT_OUT_SHARE = 0.10
#: fewer requests or preemptions than this are no collapse
FEW = 10
#: a level collapses where this share of its requests fail
FAILED_SHARE = 0.5


@dataclass(frozen=True)
class SequentialRule:
    """What a level must show before it ends, and when it ends without."""

    #: its limit, from the opening of its window
    max_s: float
    #: those to be decided at this level
    goals: tuple[SearchGoal, ...] = ("capacity",)
    #: requests in flight; None where nobody knows (an open loop): each look counts fully
    users: float | None = None
    #: floor: requests that ended, and those of each user: the first ones still show how the
    #: users began together
    min_requests: int = 20
    min_rounds: float = 3.0
    #: of the requests must meet the SLO
    attainment: float = 0.95
    kept_out_share: float = KEPT_OUT_SHARE
    #: collapse: this share of the requests failed
    failed_share: float = FAILED_SHARE
    #: collapse: so many preemptions per request that ended: work is thrown away faster than
    #: it is done
    preemptions_per_request: float = 1.0
    #: collapse: nothing has ended for this share of the level's limit since its window opened
    silent_share: float = 0.5


def decide(so_far: SoFar, rule: SequentialRule) -> Decision:
    """Whether a running level goes on."""
    if _collapsed(so_far, rule):
        return "collapse"
    if _floor(so_far, rule) and all(_decided(goal, so_far, rule) for goal in rule.goals):
        return "enough"
    return "limit" if so_far.elapsed_s >= rule.max_s else "go_on"


def looks(seen: int, ended: int, users: float | None) -> float:
    """How many independent ones so many scrapes or requests are worth."""
    if users is None:
        return float(seen)
    return min(float(seen), LOOKS_PER_ROUND * ended / max(users, 1.0))


def _collapsed(so_far: SoFar, rule: SequentialRule) -> bool:
    ended = so_far.ok + so_far.failed
    if so_far.failed >= FEW and so_far.failed >= rule.failed_share * ended:
        return True
    if so_far.preemptions >= max(FEW, rule.preemptions_per_request * max(ended, 1)):
        return True
    if ended == 0:
        return so_far.elapsed_s >= rule.silent_share * rule.max_s
    # an open loop: what comes in is more than what goes out, and the server says so too, or it is
    # more by so much that it need not
    all_out = so_far.samples >= FEW and so_far.kept_out == so_far.samples
    overloaded = so_far.overloaded or (so_far.in_flight_rising and all_out)
    return overloaded and ended >= rule.min_requests


def _floor(so_far: SoFar, rule: SequentialRule) -> bool:
    ended = so_far.ok + so_far.failed
    return ended >= max(rule.min_requests, rule.min_rounds * (rule.users or 0.0))


def _decided(goal: SearchGoal, so_far: SoFar, rule: SequentialRule) -> bool:
    ended = so_far.ok + so_far.failed
    if goal == "slo":
        if so_far.met is None or not ended:
            return False
        return _excluded(so_far.met / ended, looks(ended, ended, rule.users), rule.attainment)
    if so_far.preemptions > 0:
        return True
    if not so_far.samples:
        return False
    n = looks(so_far.samples, ended, rule.users)
    return _excluded(so_far.kept_out / so_far.samples, n, rule.kept_out_share)


def _excluded(share: float, n: float, threshold: float) -> bool:
    low, high = wilson(share, n)
    return high < threshold or low > threshold
