"""What a search decides goes into events and comes back the same."""

from __future__ import annotations

from dataclasses import replace

from harness.plan.search_events import found_detail, read_found, read_verdict, verdict_detail
from harness.plan.search_types import Found, LevelVerdict
from harness.records import CellKey, EventKind, RunEvent, Scalar

CELL = CellKey("a", "paged", 512, 64, 18.0)
GOOD = LevelVerdict(
    18.0, "capacity", "good", 0.0, 0.0, 0.08, 0.1, 44, None, ("no request waits",), ()
)
BAD = LevelVerdict(
    19.0, "capacity", "bad", 0.9, 0.7, 0.97, 0.1, 20, "kv_memory", ("one", "two"), ("three",)
)
FOUND = Found(
    "a", "capacity", "found", 18.0, 19.0, 17.0, 19.0, "kv_memory", ("full",), ("but",), (GOOD, BAD)
)


def event(kind: EventKind, detail: dict[str, Scalar], cell: CellKey | None = None) -> RunEvent:
    return RunEvent(t_s=1.0, kind=kind, cell=cell, detail=detail)


def told(verdict: LevelVerdict, cell: CellKey = CELL) -> RunEvent:
    at = CellKey(cell.backend, cell.mode, 512, 64, verdict.level, variant=cell.variant)
    return event("level_verdict", verdict_detail(verdict), at)


def test_what_was_found_comes_back_with_its_levels_in_order() -> None:
    events = [told(BAD), told(GOOD), event("search_found", found_detail(FOUND, ("--x", "1")))]
    assert read_found(events) == (FOUND,)


def test_other_goals_and_backends_and_verified_levels_are_no_part_of_it() -> None:
    other = told(replace(GOOD, goal="slo"))
    elsewhere = told(GOOD, CellKey("b", "paged", 512, 64, 18.0))
    verified = told(GOOD, CellKey("a", "paged", 512, 64, 18.0, variant="verified"))
    end = event("search_found", found_detail(FOUND, ()))
    (found,) = read_found([other, elsewhere, verified, end])
    assert found.levels == ()


def test_what_is_damaged_is_left_out() -> None:
    detail = verdict_detail(GOOD)
    for name, value in (("goal", "x"), ("state", None), ("threshold", "a"), ("n", True)):
        assert read_verdict(event("level_verdict", {**detail, name: value}, CELL)) is None
    assert read_verdict(event("level_verdict", detail)) is None
    strange = {**found_detail(FOUND, ()), "status": "lost"}
    assert read_found([event("search_found", strange)]) == ()
    odd = {**found_detail(FOUND, ()), "cause": "magic", "low": "x"}
    (found,) = read_found([event("search_found", odd)])
    assert (found.cause, found.low, found.last_good) == (None, None, 18.0)
