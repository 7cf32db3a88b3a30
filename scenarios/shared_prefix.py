"""What does a prefix cache save where requests begin with one system prompt?

    locust -f scenarios/shared_prefix.py --headless                  shares 0 and 0.9
    locust -f scenarios/shared_prefix.py --headless --prefix-tokens 2048 --reuse 0,0.5,0.95
    locust -f scenarios/shared_prefix.py --scenario-help             all options

Prompts of one length: a system prompt of --prefix-tokens and --prompt-tokens words of the
request's own. Of the requests of each level the share --reuse begins with the level's system
prompt, the others with one that nobody else has. The report has a row per share: how much of the
prompts the server found in its cache, TTFT of those that shared and of those that did not, and
the KV bytes that a running request took.
"""

from __future__ import annotations

from collections.abc import Sequence

from locust import events

from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.row_walk import RowSession
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.levels import asked_cells
from harness.plan.row_levels import PrefixLevels
from harness.workload import SharedPrefix


def levels(settings: LoadSettings, backends: Sequence[BackendInfo]) -> PrefixLevels:
    """The listed levels, in order, all backends and all shares at each."""
    work = settings.workload
    if not isinstance(work.asks, SharedPrefix):
        raise TypeError("a shared prefix was not asked for")
    cells = asked_cells(work, backends)
    return PrefixLevels(cells, work.asks, work.prompt_tokens, work.output_tokens)


SCENARIO = LocustScenario("shared_prefix", levels, RowSession, kind="prefix")
SCENARIO.attach(events)


class SharedPrefixShape(ScenarioShape):
    """As many users as the level has requests in flight."""

    scenario = SCENARIO


class SharedPrefixUser(ScenarioUser):
    """Takes the next request of the list as soon as it is free."""

    scenario = SCENARIO
