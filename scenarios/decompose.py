"""What does a paged cache bring over a contiguous one: layout, reservation, or batching?

    python scenarios/decompose.py                              starts the four servers here
    python scenarios/decompose.py --help                       and what it can be told
    locust -f scenarios/decompose.py --headless --backends one-at-a-time=URL,batched=URL,...
    locust -f scenarios/decompose.py --scenario-help           options of the load

Four servers with the same model and KV budget, each with one thing more than the one before:
contiguous with the longest context reserved, one request at a time; the same with continuous
batching; with exactly prompt + answer reserved; paged. All are asked the same requests, with
lengths as a service has them, more at once than they can hold. The report shows what each step
adds, as a waterfall of requests held and of throughput. With URLs the order of --backends is the
order of the steps, and what a step is called follows from the servers' modes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from locust import events

from harness.load.fit_mix import mix_levels
from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.row_walk import RowSession

SCENARIO = LocustScenario("decompose", mix_levels, RowSession, kind="mix")
SCENARIO.attach(events)


class DecomposeShape(ScenarioShape):
    """As many users as the level has requests in flight."""

    scenario = SCENARIO


class DecomposeUser(ScenarioUser):
    """Takes the next request of the list as soon as it is free."""

    scenario = SCENARIO


if __name__ == "__main__":
    from harness.cli_fleet import main
    from harness.stack.fleet import STEPS

    raise SystemExit(main(Path(__file__), STEPS, sys.argv[1:]))
