"""What do prompt length, answer length and concurrency each cost, on each server?

    locust -f scenarios/matrix.py --headless --plan-only     the plan and its time, no load
    locust -f scenarios/matrix.py --headless                 one run, then exit
    locust -f scenarios/matrix.py --headless --resume results/<run>
    locust -f scenarios/matrix.py --scenario-help            all options

Measures every prompt length with every answer length at every level on every backend
(``--prompt-tokens 128,512 --output-tokens 32,128 --levels 1,4``), the backends alternating.
The plan comes first. What a server cannot hold is left out with its reason, and a cell that
fails is a row that says why. An interrupted run goes on with the first unfinished cell.
"""

from __future__ import annotations

from locust import events

from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.matrix_plan import matrix_levels, with_estimate

SCENARIO = LocustScenario("matrix", matrix_levels, kind="matrix", complete=with_estimate)
SCENARIO.attach(events)


class MatrixShape(ScenarioShape):
    """As many users as the cell has requests in flight."""

    scenario = SCENARIO


class MatrixUser(ScenarioUser):
    """Unique prompts and answers of the cell's length, streamed."""

    scenario = SCENARIO
