"""How do TTFT and TPOT change with the number of requests that arrive per second?

    locust -f scenarios/open_loop.py                  web page, press Start
    locust -f scenarios/open_loop.py --headless       one run, then exit
    locust -f scenarios/open_loop.py --scenario-help  all options

Walks the rates (``--request-rate 1,2,4``): requests are due at times fixed before the run
and go out then, however many are still in flight. The backends alternate rate by rate and
see the same arrivals. Every run leaves a folder in ``--results-dir``.
"""

from __future__ import annotations

from collections.abc import Sequence

from locust import events

from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.open_walk import OpenWalk
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.arrivals import OpenLevels
from harness.plan.levels import asked_cells


def levels(settings: LoadSettings, backends: Sequence[BackendInfo]) -> OpenLevels:
    """The listed rates, in order, all backends at each."""
    cells = asked_cells(settings.workload, backends)
    return OpenLevels(cells, settings.workload, settings.replay)


SCENARIO = LocustScenario("open_loop", levels, OpenWalk, kind="rate")
SCENARIO.attach(events)


class OpenLoopShape(ScenarioShape):
    """One user, whatever the rate."""

    scenario = SCENARIO


class OpenLoopUser(ScenarioUser):
    """Sends each request when it is due: unique prompts and answers of exact length."""

    scenario = SCENARIO
