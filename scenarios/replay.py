"""How does a server do under real traffic? Replays a trace file.

    locust -f scenarios/replay.py --trace FILE                  web page, press Start
    locust -f scenarios/replay.py --trace FILE --headless       one run, then exit
    locust -f scenarios/replay.py --scenario-help               all options

Every request goes out at its time in the trace (``--time-scale 0.5``: twice as fast), with
the trace's prompt and answer lengths, and with its shared prefixes where it states them.
One level; several backends get the same requests one after the other.
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


def level(settings: LoadSettings, backends: Sequence[BackendInfo]) -> OpenLevels:
    """The whole trace on each backend; a repeat replays it again."""
    cells = asked_cells(settings.workload, backends)
    return OpenLevels(cells, settings.workload, settings.replay)


SCENARIO = LocustScenario("replay", level, OpenWalk, kind="trace")
SCENARIO.attach(events)


class ReplayShape(ScenarioShape):
    """One user, whatever the trace."""

    scenario = SCENARIO


class ReplayUser(ScenarioUser):
    """Sends each request when the trace says so."""

    scenario = SCENARIO
