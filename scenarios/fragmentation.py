"""How much of the KV memory that is reserved holds tokens, with lengths as a service has them?

    locust -f scenarios/fragmentation.py --headless                  drawn lengths, log-normal
    locust -f scenarios/fragmentation.py --headless --trace FILE     those of a trace
    locust -f scenarios/fragmentation.py --scenario-help             all options
    python scenarios/fragmentation.py                                starts four servers here

Every backend is asked the same requests in the same order, more at once than it can hold. The
report has a row per backend: the share of reserved bytes that held tokens while requests waited,
how many requests were held, tokens per second, and beside each the figure that a simulation of
the server's way of reserving predicts. A contiguous server has three ways (--reserve max, pow2,
exact), a paged one a fourth: started with python the scenario has one server of each.
Kwon et al. (PagedAttention, SOSP 2023) report 20.4, 26.8, 38.2 and 96.3 % for theirs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from locust import events

from harness.load.fit_mix import mix_levels
from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.row_walk import RowSession

SCENARIO = LocustScenario("fragmentation", mix_levels, RowSession, kind="mix")
SCENARIO.attach(events)


class FragmentationShape(ScenarioShape):
    """As many users as the level has requests in flight."""

    scenario = SCENARIO


class FragmentationUser(ScenarioUser):
    """Takes the next request of the list as soon as it is free."""

    scenario = SCENARIO


if __name__ == "__main__":
    from harness.cli_fleet import main
    from harness.stack.fleet import RESERVATIONS

    raise SystemExit(main(Path(__file__), RESERVATIONS, sys.argv[1:]))
