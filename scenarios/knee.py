"""How many requests does each server hold at once, and what stops it there?

    locust -f scenarios/knee.py --headless --backends mine=http://host:port
    locust -f scenarios/knee.py                         web page, press Start
    locust -f scenarios/knee.py --scenario-help         all options

Finds the level by itself: begins at what the server's own facts predict, doubles until a
level is bad, then halves the gap down to one level. A level goes on until it is sure to be
good or bad. Several backends take turns. Any running server will do; one that ``kvknee up``
has started on this machine is restarted at the end with what was found, to verify it.
"""

from __future__ import annotations

from locust import events

from harness.load.locust_scenario import ScenarioShape, ScenarioUser
from harness.search.scenario import KneeScenario

SCENARIO = KneeScenario("knee")
SCENARIO.attach(events)


class KneeShape(ScenarioShape):
    """As many users as the level has requests in flight."""

    scenario = SCENARIO


class KneeUser(ScenarioUser):
    """Unique prompts of exact length, answers of exact length, streamed."""

    scenario = SCENARIO
