"""Levels that are too much for the client, or for their time: the search stays below them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from harness.plan.bracketing import MOST_TIMES, Known, next_level
from harness.plan.knee_interval import put_together
from harness.plan.knee_search import KneeSearch
from harness.plan.search_types import Found, LevelVerdict, Searched, SearchGoal
from harness.records import CellKey, LevelSummary
from tests.plan.test_knee_search import summary, verdict


def measured(level: float, kind: str, goal: SearchGoal = "capacity") -> LevelVerdict:
    """A level that is good, bad, undecided, too much for the client, or too slow."""
    if kind in ("good", "bad", "undecided"):
        return verdict(level, kind, goal)  # type: ignore[arg-type]
    return LevelVerdict(
        level=level, goal=goal, state="undecided", share=None, low=None, high=None,
        threshold=0.1, n=0, cause="client" if kind == "client" else "unknown",
        too_slow=kind == "slow",
    )  # fmt: skip


def walk(
    kind_of: Callable[[int], str],
    start: float | None = None,
    top: float = 512,
    goal: SearchGoal = "capacity",
    most: int = 60,
) -> tuple[Found, list[float]]:
    search = KneeSearch(
        (Searched("a", "m", start, (goal,)),), 8, 8,
        lambda cell: [measured(cell.level, kind_of(round(cell.level)), goal)],
        max_level=top,
    )  # fmt: skip
    done: list[LevelSummary] = []
    while (cell := search.next_cell(done)) is not None:
        done.append(summary(cell))
        assert len(done) <= most
    return search.found(done)[0], [item.cell.level for item in done]


def test_an_undecided_level_below_the_clients_limit_is_asked_twice_at_most() -> None:
    known = {8: Known("good"), 16: Known("undecided"), 32: Known("undecided", ceiling=True)}
    asked: list[int] = []
    while (level := next_level(known, None, 512, 0.05)) is not None:
        asked.append(level)
        known[level] = Known(
            "undecided", known[level].times + 1 if level in known else 1, level >= 32
        )
        assert len(asked) < 20
    # 16 again; then halfway from 8 to 16: 12, 10, 9, each again; at the end 32 itself
    assert asked[:3] == [16, 12, 12]
    assert 32 in asked
    assert max(item.times for item in known.values()) == MOST_TIMES


def test_levels_that_are_too_slow_send_the_search_down() -> None:
    """200 never opens, nor does 100: half of it is asked, then what lies between."""
    found, order = walk(lambda level: "slow" if level > 60 else "good", start=200)
    assert order[:4] == [200, 100, 50, 75]
    assert found.last_good is not None
    assert 56 <= found.last_good <= 60
    # nothing says that it holds no more: its requests were too slow to be measured
    assert (found.status, found.first_bad) == ("undecided", None)


def test_below_a_level_that_is_too_slow_the_knee_is_still_found() -> None:
    found, order = walk(
        lambda level: "slow" if level > 60 else "bad" if level > 40 else "good", start=200
    )
    assert (found.status, found.last_good) == ("found", 40)
    assert order[:3] == [200, 100, 50]


def test_the_slo_is_looked_for_between_the_last_good_level_and_one_too_slow() -> None:
    found, order = walk(lambda level: "slow" if level >= 100 else "good", goal="slo")
    assert order[:8] == [1, 2, 4, 8, 16, 32, 64, 128]
    # 128 is a ceiling: 96 is good, 112 is not measured, 104 neither, 100 neither
    assert order[8:12] == [96, 112, 104, 100]
    assert (found.status, found.last_good) == ("undecided", 96)
    assert max(order) == 128


def test_a_server_that_is_always_too_slow_ends_the_search() -> None:
    found, order = walk(lambda level: "slow", start=200)
    assert order == [200, 100, 50, 25, 12, 6, 3, 1, 1]
    assert (found.status, found.last_good, found.first_bad) == ("undecided", None, None)


def test_what_measured_nothing_still_ends_a_search_at_once() -> None:
    """A metrics page that is lost is no ceiling: two such levels in a row are the end."""
    assert walk(lambda level: "blind", start=200)[1] == [200, 210]


KINDS = st.sampled_from(("good", "bad", "undecided", "client", "slow", "blind"))


@given(st.lists(KINDS, min_size=1, max_size=64), st.integers(1, 80), st.booleans())
def test_any_mix_of_levels_ends(curve: Sequence[str], start: int, predicted: bool) -> None:
    found, order = walk(
        lambda level: curve[level - 1],
        start if predicted else None,
        len(curve),
        most=2 * len(curve),
    )
    assert all(1 <= level <= len(curve) for level in order)
    assert max(order.count(level) for level in order) <= MOST_TIMES
    if found.last_good is not None:
        assert curve[round(found.last_good) - 1] == "good"
    if found.first_bad is not None:
        assert curve[round(found.first_bad) - 1] == "bad"


def test_a_level_that_fails_in_one_of_its_repeats_stays_bad() -> None:
    cell = CellKey("a", "m", 8, 8, 4.0)
    failed = LevelVerdict(
        level=cell.level, goal="capacity", state="bad", share=None, low=None, high=None,
        threshold=0.1, n=0, cause="failures", evidence=("12 of 40 requests failed",), strength=50.0,
    )  # fmt: skip
    both = put_together([verdict(4.0, "good"), failed])
    assert (both.state, both.cause, both.evidence) == ("bad", "failures", failed.evidence)
    assert both.strength == 50.0 - 8.0
    assert put_together([failed, failed]) == failed
    # no backlog: that is said of levels of an open loop
    assert not failed.over_saturated
