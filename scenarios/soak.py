"""Does a server leak memory or slow down over hours?

    locust -f scenarios/soak.py --headless --run-time 8h
    locust -f scenarios/soak.py --headless --run-time 10m --cancel-share 0.2 \\
        --max-latency-growth ""                              memory alone is judged
    locust -f scenarios/soak.py --scenario-help              all options

Holds one level for ``--run-time`` on each backend, in stretches with a short pause between, in
which nothing is in flight. A share of the clients leaves in mid-stream. The report has the
slope of process memory, of KV bytes at rest, of TTFT and TPOT, each with its interval; the
exit code is 0 only when no drift beyond the limits was found and the last KV byte was given
back.
"""

from __future__ import annotations

from collections.abc import Sequence

from locust import events

from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.levels import FixedLevels, asked_cells


def stretches(settings: LoadSettings, backends: Sequence[BackendInfo]) -> FixedLevels:
    """The level again and again; several backends take turns."""
    return FixedLevels(asked_cells(settings.workload, backends))


SCENARIO = LocustScenario("soak", stretches, kind="soak")
SCENARIO.attach(events)


class SoakShape(ScenarioShape):
    """As many users as the level has requests in flight."""

    scenario = SCENARIO


class SoakUser(ScenarioUser):
    """Unique prompts; some clients leave before their answer's end."""

    scenario = SCENARIO
