"""The search on curves whose answer is known: what it asks next, and what it says at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan.knee_search import KneeSearch
from harness.plan.search_types import (
    Cause,
    Found,
    LevelState,
    LevelVerdict,
    Searched,
    SearchGoal,
)
from harness.records import CellKey, LevelSummary

Rule = Callable[[int], LevelState]


def verdict(
    level: float, state: LevelState, goal: SearchGoal = "capacity", cause: Cause | None = None
) -> LevelVerdict:
    strength = {"good": -8.0, "bad": 30.0, "undecided": 0.1}[state]
    share = {"good": 0.0, "bad": 0.8, "undecided": 0.1}[state]
    bounds = {"good": (0.0, 0.08), "bad": (0.6, 0.9), "undecided": (0.03, 0.2)}[state]
    return LevelVerdict(
        level=level, goal=goal, state=state, share=share, low=bounds[0], high=bounds[1],
        threshold=0.1, n=40, cause="kv_memory" if state == "bad" and cause is None else cause,
        strength=strength, effective=38.0,
    )  # fmt: skip


def summary(cell: CellKey, took_s: float = 10.0) -> LevelSummary:
    return LevelSummary(
        cell=cell, n_ok=40, n_failed=0, window_s=8.0, reason="complete", took_s=took_s
    )


def above(knee: int) -> Rule:
    return lambda level: "bad" if level > knee else "good"


def searched(
    rule: Rule, start: float | None = None, top: float = 512, resolution: float = 0.05
) -> tuple[Found, list[float]]:
    """What is found, and the levels in the order they were measured."""
    search = KneeSearch(
        (Searched("a", "m", start),), 8, 8,
        lambda cell: [verdict(cell.level, rule(round(cell.level)))],
        max_level=top, resolution=resolution,
    )  # fmt: skip
    done: list[LevelSummary] = []
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell))
        assert len(done) < 60
    assert len({item.cell for item in done}) == len(done)
    return search.found(done)[0], [item.cell.level for item in done]


def ends(found: Found) -> tuple[str, float | None, float | None]:
    return found.status, found.last_good, found.first_bad


def test_a_right_prediction_takes_two_levels() -> None:
    found, order = searched(above(18), start=18)
    assert order == [18, 19]
    assert ends(found) == ("found", 18, 19)
    assert (found.low, found.high, found.cause) == (18, 18, "kv_memory")


def test_the_distance_doubles_until_past_then_it_is_halved() -> None:
    # 18 + 1, 2, 4, 8: 26 is past 23; between 22 and 26: 24, 23
    found, order = searched(above(23), start=18)
    assert order == [18, 19, 20, 22, 26, 24, 23]
    assert ends(found) == ("found", 23, 24)
    # downwards: 18 - 1, 2, 4, 8; between 10 and 14: 12, 13
    assert searched(above(12), start=18)[1] == [18, 17, 16, 14, 10, 12, 13]


def test_without_a_prediction_the_level_doubles() -> None:
    found, order = searched(above(11))
    assert order == [1, 2, 4, 8, 16, 12, 10, 11]
    assert ends(found) == ("found", 11, 12)


def test_a_large_knee_is_found_to_five_percent() -> None:
    found, order = searched(above(300), start=200)
    # 200 + 10, 20, 40, 80, 160: between 280 and 360: 320, 300, 310
    assert order == [200, 210, 220, 240, 280, 360, 320, 300, 310]
    assert ends(found) == ("found", 300, 310)
    assert (found.low, found.high) == (300, 309)
    assert ends(searched(above(300), start=200, resolution=0.001)[0]) == ("found", 300, 301)


def test_e108_a_curve_that_never_bends_is_not_reached() -> None:
    found, order = searched(above(10**6), start=20, top=64)
    assert order[-1] == 64
    assert ends(found) == ("not_reached", 64, None)
    assert (found.high, found.cause) == (None, None)


def test_a_level_below_the_first() -> None:
    found, order = searched(above(0), start=8)
    assert order == [8, 7, 6, 4, 1]
    assert ends(found) == ("below_first", None, 1)
    assert (found.low, found.high) == (None, 0)
    assert ends(searched(above(0), top=1)[0]) == ("below_first", None, 1)


def test_e111_a_default_far_above_what_fits() -> None:
    """77,088 tokens of KV hold 77,088 // 1,008 = 76 requests; the search begins at 256."""
    found, order = searched(above(77_088 // 1008), start=256)
    assert found.status == "found"
    assert found.last_good is not None
    assert abs(found.last_good - 76) <= 0.05 * 76
    assert max(order) == 256


def test_e112_good_again_beyond_the_knee_does_not_move_it() -> None:
    """The lowest bad level counts. As one above is good it is measured once more."""
    rule: Rule = lambda level: "bad" if 20 <= level <= 40 else "good"  # noqa: E731
    found, order = searched(rule, start=30)
    assert ends(found)[1:] == (19, 20)
    assert len(order) < 15
    # begun beyond the dent it finds what it can see: no bad level up to the highest
    assert ends(searched(rule, start=50, top=64)[0]) == ("not_reached", 64, None)
    known = {25: "bad", 50: "good"}
    search = KneeSearch(
        (Searched("a", "m", 50),), 8, 8,
        lambda cell: [verdict(cell.level, rule(round(cell.level)))], max_level=50,
    )  # fmt: skip
    done = [summary(CellKey("a", "m", 8, 8, float(level))) for level in known]
    asked: list[CellKey] = []
    while (cell := search.next_cell(done)) is not None:
        asked.append(cell)
        done.append(summary(cell))
    assert ends(search.found(done)[0])[1:] == (19, 20)
    assert [cell.level for cell in asked if cell.repeat == 1] == [20.0]


def test_an_undecided_level_is_measured_once_more_and_then_left() -> None:
    rule: Rule = lambda level: "undecided" if level == 18 else above(17)(level)  # noqa: E731
    found, order = searched(rule, start=17)
    assert order == [17, 18, 19, 18]
    assert ends(found) == ("undecided", 17, 19)
    assert (found.low, found.high) == (17, 18)


def test_undecided_everywhere_ends_and_claims_nothing() -> None:
    found, order = searched(lambda level: "undecided", start=4, top=16)
    assert ends(found) == ("undecided", None, None)
    assert (found.low, found.high) == (None, None)
    assert max(order.count(level) for level in order) <= 2


def test_nothing_is_asked_beyond_what_the_client_can_do() -> None:
    def said(cell: CellKey) -> list[LevelVerdict]:
        beyond = cell.level > 20
        return [
            verdict(cell.level, "undecided" if beyond else "good", cause="client")
            if beyond
            else verdict(cell.level, "good")
        ]

    search = KneeSearch((Searched("a", "m", 16),), 8, 8, said, max_level=512)
    done: list[LevelSummary] = []
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell))
    assert max(item.cell.level for item in done) == 24
    found = search.found(done)[0]
    assert ends(found) == ("undecided", 20, None)
    assert found.cause == "client"


def test_backends_take_turns_and_goals_share_levels() -> None:
    goals: tuple[SearchGoal, ...] = ("capacity", "slo")

    def said(cell: CellKey) -> list[LevelVerdict]:
        knee = 6 if cell.backend == "a" else 3
        return [
            verdict(cell.level, above(knee)(round(cell.level))),
            verdict(cell.level, above(2)(round(cell.level)), "slo", "compute"),
        ]

    search = KneeSearch(
        (Searched("a", "m", 6, goals), Searched("b", "m", 4, goals)), 8, 8, said, max_level=64
    )
    done: list[LevelSummary] = []
    assert search.goal_of("a", done) == "capacity"
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell))
    # a: 6, 7, then for the SLO half of 6 (bad), 1, 2; b: 4 bad, 3 good, for the SLO 1, 2
    assert [(i.cell.backend, i.cell.level) for i in done] == [
        ("a", 6), ("b", 4), ("a", 7), ("b", 3), ("a", 3), ("b", 1), ("a", 1), ("b", 2), ("a", 2),
    ]  # fmt: skip
    assert [ends(item) for item in search.found(done)] == [
        ("found", 6, 7), ("found", 2, 3), ("found", 3, 4), ("found", 2, 3),
    ]  # fmt: skip
    assert search.goal_of("a", done) is None
    assert search.goal_of("nobody", done) is None


def test_the_budget_ends_it_and_the_answer_says_so() -> None:
    left = [100.0]
    search = KneeSearch(
        (Searched("a", "m", 18),), 8, 8,
        lambda cell: [verdict(cell.level, above(40)(round(cell.level)))],
        budget_left_s=lambda: left[0],
    )  # fmt: skip
    done: list[LevelSummary] = []
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell, took_s=30.0))
        left[0] -= 30.0
    # 100 - 3 x 30 = 10 s are left: no level ends in them
    assert len(done) == 3
    assert ends(search.found(done)[0]) == ("budget", 20, None)
    assert search.found([])[0].status == "budget"


def test_rates_in_steps_of_a_unit() -> None:
    search = KneeSearch(
        (Searched("a", "m", 1.5),), 8, 8,
        lambda cell: [verdict(cell.level, "bad" if cell.level > 2.05 else "good")],
        max_level=10.0, unit=0.1,
    )  # fmt: skip
    done: list[LevelSummary] = []
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell))
    found = search.found(done)[0]
    assert found.status == "found"
    assert found.last_good == pytest.approx(2.0)
    assert found.first_bad == pytest.approx(2.1)


def test_a_level_without_a_verdict_is_undecided() -> None:
    search = KneeSearch((Searched("a", "m", 4),), 8, 8, lambda cell: (), max_level=4)
    done: list[LevelSummary] = []
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell))
        assert len(done) < 20
    assert ends(search.found(done)[0]) == ("undecided", None, None)


STATES = st.sampled_from(("good", "bad", "undecided"))


@given(
    st.lists(STATES, min_size=1, max_size=64), st.integers(1, 80), st.booleans(),
    st.sampled_from((0.0, 0.05, 0.3)),
)  # fmt: skip
def test_e108_any_curve_ends_without_a_crash_and_invents_nothing(
    curve: Sequence[LevelState], start: int, predicted: bool, resolution: float
) -> None:
    found, order = searched(
        lambda level: curve[level - 1], start if predicted else None, len(curve), resolution
    )
    assert all(1 <= level <= len(curve) for level in order)
    if found.first_bad is not None:
        assert curve[round(found.first_bad) - 1] == "bad"
    if found.last_good is not None:
        assert curve[round(found.last_good) - 1] == "good"
    if found.status == "not_reached":
        assert curve[-1] == "good"
    if found.status == "found":
        assert found.last_good is not None
        assert found.first_bad is not None
        assert found.first_bad - found.last_good <= max(1, resolution * found.last_good)


def test_two_levels_in_a_row_that_measure_nothing_end_the_search() -> None:
    # a metrics page is lost from the third level on: a higher level would not see more
    blind_from = 2
    done: list[LevelSummary] = []

    def verdict_of(cell: CellKey) -> list[LevelVerdict]:
        lost = [item.cell for item in done].index(cell) >= blind_from
        return [] if lost else [verdict(cell.level, "good")]

    search = KneeSearch((Searched("a", "m", 8),), 8, 8, verdict_of, max_level=512)
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell))
    assert [item.cell.level for item in done] == [8, 9, 10, 12]
    (found,) = search.found(done)
    assert (found.status, found.last_good, found.first_bad) == ("undecided", 9, None)
