"""What is looked for, once the servers have said what they are."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from harness.kv.capacity import predicted_capacity
from harness.load.clock import Clock
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.knee_search import KneeSearch
from harness.plan.search_types import Searched, SearchGoal
from harness.search.policy import KneePolicy, Verdicts
from harness.search.restarts import owned_backends
from harness.workload import Slo, Workload


class Deadline:
    """When a search must end; its time runs from the start of the load."""

    def __init__(self, budget_s: float | None) -> None:
        """``budget_s``: None for no limit."""
        self._budget_s = budget_s
        self._clock: Clock | None = None
        self._begun_s = 0.0

    def begin(self, clock: Clock) -> None:
        """The load starts now."""
        self._clock, self._begun_s = clock, clock.monotonic()

    def left_s(self) -> float | None:
        """Seconds that are left; None: there is no limit."""
        if self._clock is None or self._budget_s is None:
            return self._budget_s
        return self._budget_s - (self._clock.monotonic() - self._begun_s)


class KneePlan(KneePolicy):
    """The policy of one run, with what it was made of."""

    def __init__(
        self, settings: LoadSettings, infos: Sequence[BackendInfo], with_metrics: Collection[str]
    ) -> None:
        """``with_metrics``: the backends that tell of themselves while they are loaded.

        Raises TypeError for a workload that asks for no search.
        """
        work, asked = settings.workload, settings.workload.search
        if asked is None:
            raise TypeError("a search needs a workload that asks for one")
        self.predicted = predictions(work, infos)
        self.deadline = Deadline(asked.budget_s)
        self.owned = owned_backends(infos) if asked.verify and work.loop == "closed" else {}
        verdicts = Verdicts()
        search = KneeSearch(
            [
                Searched(
                    info.name,
                    info.mode,
                    self.predicted.get(info.name),
                    goals(settings.slo, has_metrics=info.name in with_metrics),
                )
                for info in infos
            ],
            work.prompt_tokens,
            work.output_tokens,
            verdicts.of,
            max_level=max(work.levels),
            unit=1.0 if work.loop == "closed" else rate_unit(work),
            budget_left_s=self.deadline.left_s,
        )
        super().__init__(
            search,
            verdicts,
            {info.name: info.mode for info in infos},
            (work.prompt_tokens, work.output_tokens),
            self.owned,
        )


def rate_unit(work: Workload) -> float:
    """The step of a rate: the lowest whose level has its requests in time, 1, 2 or 5 x 10^n.

    A finer step would not be told apart either.
    """
    warmup_s = work.open_loop.warmup_s if work.open_loop is not None else 0.0
    least = work.min_requests[0] / (work.max_level_s - warmup_s)
    power = 10.0 ** math.floor(math.log10(least))
    return min(
        next(step * power for step in (1, 2, 5, 10) if step * power >= least), max(work.levels)
    )


def goals(slo: Slo, *, has_metrics: bool) -> tuple[SearchGoal, ...]:
    """What can be looked for: without metrics nobody tells who is kept waiting."""
    found: tuple[SearchGoal, ...] = ("capacity",) if has_metrics else ()
    return found if slo == Slo() else (*found, "slo")


def predictions(work: Workload, infos: Sequence[BackendInfo]) -> dict[str, int]:
    """Requests that each backend's own facts say it holds; nothing predicts a rate."""
    if work.loop == "open":
        return {}
    found = {
        info.name: predicted_capacity(info, work.prompt_tokens, work.output_tokens)
        for info in infos
    }
    return {
        name: capacity.requests
        for name, capacity in found.items()
        if capacity is not None and capacity.requests > 0
    }
