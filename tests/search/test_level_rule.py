"""When a level is decided, from what was asked."""

from __future__ import annotations

from harness.plan.search_types import SearchGoal, SoFar
from harness.records import CellKey
from harness.search.rule import LEAST_SCRAPES, level_rule
from tests.load.test_knee_settings import knee

CELL = CellKey("a", "paged", 512, 64, 4.0)


def so_far(samples: int, **changes: object) -> SoFar:
    """All of 200 requests met the SLO, and all scrapes show requests kept out."""
    facts = {"elapsed_s": 10.0, "ok": 200, "failed": 0, "met": 200, "preemptions": 0.0}
    rest = {"samples": samples, "kept_out": samples, "in_flight_rising": False}
    return SoFar(**{**facts, **rest, **changes})  # type: ignore[arg-type]


def test_a_queue_is_not_decided_by_one_scrape() -> None:
    decide = level_rule(knee(), CELL, ("capacity",))
    assert decide(so_far(LEAST_SCRAPES - 1)) == "go_on"
    assert decide(so_far(LEAST_SCRAPES)) == "enough"


def test_the_slo_needs_no_scrapes_and_time_is_time() -> None:
    goals: tuple[SearchGoal, ...] = ("slo",)
    assert level_rule(knee(), CELL, goals)(so_far(0)) == "enough"
    # 200 of 200: from 0.981 on
    assert level_rule(knee(attainment="0.99"), CELL, goals)(so_far(0)) == "go_on"
    # undecided for want of scrapes: the time limit still holds
    assert level_rule(knee(), CELL, ("capacity",))(so_far(0, elapsed_s=120.0)) == "limit"
