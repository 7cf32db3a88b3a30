"""When a running level of a search is decided, from what was asked. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.load.settings import LoadSettings
from harness.plan.search_types import Decision, SearchGoal, SoFar
from harness.plan.sequential import SequentialRule, decide
from harness.records import CellKey

#: The report says nothing of a queue that one scrape shows: where requests take a tenth of a
#: second a level would be over before the next one.
LEAST_SCRAPES = 4


def level_rule(
    settings: LoadSettings, cell: CellKey, goals: tuple[SearchGoal, ...]
) -> Callable[[SoFar], Decision]:
    """When a level is decided, from what was asked."""
    work, asked = settings.workload, settings.workload.search
    rule = SequentialRule(
        max_s=work.max_level_s,
        goals=goals,
        users=cell.level if work.loop == "closed" else None,
        min_requests=work.min_requests[0],
    )
    if asked is not None:
        rule = replace(rule, attainment=asked.attainment)

    def decision(so_far: SoFar) -> Decision:
        said = decide(so_far, rule)
        few = "capacity" in goals and so_far.samples < LEAST_SCRAPES
        return "go_on" if said == "enough" and few else said

    return decision
