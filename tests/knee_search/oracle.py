"""What a case does in truth: the engine's core watched from inside, for long. No analysis.

The oracle draws lengths and step times from the case's law, with seeds of its own, and sees
after every step what keeps the first waiting request out. Its definitions are those of
``harness.analysis.level_verdict`` and ``knee`` in words, worked out independently: a level is bad
for capacity when requests are kept out for 10 % of the time, or one is preempted in ten rounds
of all users; for the SLO when fewer than 95 % of the requests meet it.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from typing import Literal

from servers.simulated.core import EngineCore, Sequence
from tests.knee_search.cases import THINK_S, Case

TrueCause = Literal["kv_memory", "scheduler_limit", "compute"]

KEPT_OUT, ATTAINMENT, PREEMPTIONS_PER_ROUND = 0.10, 0.95, 0.1
#: rounds that are left out; looked at first; and at most, so that a small level has enough
_WARM, _FEW, _MANY = 2, 12, 150
#: requests of a large level that are enough
_ENOUGH = 6_000


@dataclass(frozen=True)
class Truth:
    """The true last good level; None where no level up to the highest is bad."""

    last_good: int | None
    cause: TrueCause | None


@dataclass
class _Seen:
    kv_s: float = 0.0
    seqs_s: float = 0.0
    total_s: float = 0.0
    preemptions: int = 0
    rounds: float = 0.0
    met: int = 0
    ended: int = 0

    def badness(self, goal: str) -> float:
        """1 at the threshold, above it bad."""
        if goal == "slo":
            return (1 - self.met / max(self.ended, 1)) / (1 - ATTAINMENT)
        kept_out = (self.kv_s + self.seqs_s) / (self.total_s or 1.0) / KEPT_OUT
        return max(kept_out, self.preemptions / (self.rounds or 1.0) / PREEMPTIONS_PER_ROUND)


def truth_of(case: Case) -> Truth:
    """The last good level up to the case's highest, by bisection around the aim."""
    known: dict[int, bool] = {}

    def bad(level: int) -> bool:
        if level not in known:
            known[level] = level_is_bad(case, level)
        return known[level]

    low, high = 0, min(case.aim, case.max_level)
    while not bad(high):
        if high == case.max_level:
            return Truth(None, None)
        low, high = high, min(case.max_level, high + max(1, high // 8))
    while high - low > 1:
        middle = max((low + high) // 2, high - max(1, high // 8))
        low, high = (low, middle) if bad(middle) else (middle, high)
    return Truth(low, _cause(case, high))


def level_is_bad(case: Case, level: int) -> bool:
    """Look for a few rounds, and where that is not clear for many."""
    loop = _Loop(case, level)
    few = loop.run(_FEW).badness(case.goal)
    if few < 0.2 or few > 5.0:
        return few > 1.0
    return loop.run(max(_FEW, min(_MANY, _ENOUGH // level))).badness(case.goal) > 1.0


def _cause(case: Case, level: int) -> TrueCause:
    seen = _Loop(case, level).run(_FEW)
    if max(seen.kv_s, seen.seqs_s) < KEPT_OUT / 2 * seen.total_s and not seen.preemptions:
        return "compute"
    return "scheduler_limit" if seen.seqs_s > seen.kv_s else "kv_memory"


class _Loop:
    """A closed loop of users in front of the core."""

    def __init__(self, case: Case, users: int) -> None:
        self._case, self._core = case, EngineCore(case.model)
        self._users = users
        self._draw = random.Random(f"oracle/{case.name}/{users}")
        self._lengths = case.law.lengths(self._draw)
        ramp = case.law.ramp_s
        self._coming = [(ramp * user / users, user) for user in range(users)]
        self._first: dict[int, float] = {}
        self._now = 0.0
        self._ended = 0
        self._before = 0
        self.seen = _Seen()

    def run(self, rounds: int) -> _Seen:
        """Go on until so many rounds of all users are behind the warm-up."""
        while self._ended < (_WARM + rounds) * self._users:
            self._step(self._ended >= _WARM * self._users)
        return self.seen

    def _step(self, warm: bool) -> None:
        core, seen = self._core, self.seen
        self._arrive()
        planned = core.begin_step(self._now)
        if planned is None:
            self._now = self._coming[0][0]
            return
        duration = planned * self._case.law.step_factor(self._draw)
        if warm:
            blocker = core.blocker()
            seen.kv_s += duration if blocker == "kv" else 0.0
            seen.seqs_s += duration if blocker == "seqs" else 0.0
            seen.total_s += duration
            seen.preemptions += core.preemptions - self._before
        self._before = core.preemptions
        self._now += duration
        for sequence in core.end_step():
            if sequence.generated == 1:
                self._first[sequence.key] = self._now
            if sequence.finished:
                self._over(sequence, warm)

    def _over(self, sequence: Sequence, warm: bool) -> None:
        first = self._first[sequence.key]
        self._ended += 1
        heapq.heappush(self._coming, (self._now + THINK_S, sequence.key))
        if not warm:
            return
        case, seen = self._case, self.seen
        ttft, gaps = first - sequence.t_arrival_s, max(1, sequence.output_tokens - 1)
        late = case.ttft_limit_s is not None and ttft > case.ttft_limit_s
        slow = case.tpot_limit_s is not None and (self._now - first) / gaps > case.tpot_limit_s
        seen.ended += 1
        seen.met += not (late or slow)
        seen.rounds = seen.ended / self._users

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self._now:
            t_s, user = heapq.heappop(self._coming)
            length = next(self._lengths)
            self._core.add(Sequence(user, self._case.law.prompt_tokens, length, t_s))
