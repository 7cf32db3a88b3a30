"""How does a server do in conversations, whose every turn sends all that was said before?

    locust -f scenarios/chat_sessions.py --headless                  8 conversations of 5 turns
    locust -f scenarios/chat_sessions.py --headless --levels 4,16 --turns 8 --think-time 5
    locust -f scenarios/chat_sessions.py --scenario-help             all options

A level is a number of conversations at once. Each begins with the system prompt that all share;
at every turn its user adds --user-tokens, gets an answer of --output-tokens, and thinks before
the next one; after the last turn another conversation begins. The report has a row per turn: its
prompt, how much of it had been said before, and its TTFT; and a row per level: how much of what
had been said the server found in its prefix cache, and the KV bytes it took.
"""

from __future__ import annotations

from collections.abc import Sequence

from locust import events

from harness.load.chat_walk import ChatSession
from harness.load.locust_scenario import LocustScenario, ScenarioShape, ScenarioUser
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.levels import asked_cells
from harness.plan.row_levels import ConversationLevels
from harness.workload import Conversations


def levels(settings: LoadSettings, backends: Sequence[BackendInfo]) -> ConversationLevels:
    """The listed levels, in order, all backends at each."""
    work = settings.workload
    if not isinstance(work.asks, Conversations):
        raise TypeError("conversations were not asked for")
    cells = asked_cells(work, backends)
    return ConversationLevels(cells, work.asks, work.output_tokens, work.seed)


SCENARIO = LocustScenario("chat_sessions", levels, ChatSession, kind="chat")
SCENARIO.attach(events)


class ChatShape(ScenarioShape):
    """As many users as the level has conversations."""

    scenario = SCENARIO


class ChatUser(ScenarioUser):
    """Talks, and thinks in between."""

    scenario = SCENARIO
