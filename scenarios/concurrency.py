"""How do TTFT, TPOT and memory change with the number of requests in flight?

    locust -f scenarios/concurrency.py                  web page, press Start
    locust -f scenarios/concurrency.py --headless       one run, then exit
    locust -f scenarios/concurrency.py --scenario-help  all options

Walks the levels (``--levels 1,4,16,32``): so many users, each with one request in flight.
The backends alternate level by level. Every run leaves a folder in ``--results-dir``.
"""

from __future__ import annotations

from collections.abc import Sequence

from locust import events

from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.levels import FixedLevels, asked_cells


def levels(settings: LoadSettings, backends: Sequence[BackendInfo]) -> FixedLevels:
    """The listed levels, in order, all backends at each."""
    return FixedLevels(asked_cells(settings.workload, backends))


SCENARIO = LocustScenario("concurrency", levels)
SCENARIO.attach(events)


class ConcurrencyShape(ScenarioShape):
    """As many users as the level has requests in flight."""

    scenario = SCENARIO


class ConcurrencyUser(ScenarioUser):
    """Unique prompts of exact length, answers of exact length, streamed."""

    scenario = SCENARIO
