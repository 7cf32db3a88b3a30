"""The search as the load asks it, with the real search behind it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness.plan.knee_search import KneeSearch
from harness.plan.search_types import (
    VERIFIED,
    Cause,
    LevelState,
    LevelVerdict,
    Searched,
    SearchGoal,
)
from harness.records import CellKey, LevelSummary
from harness.search.plan import Deadline, goals, predictions, rate_unit
from harness.search.policy import KneePolicy, Verdicts
from harness.workload import KneeAsk, OpenLoop, Slo
from tests.support.fake_server import paged_info, static_info
from tests.support.run_builder import manifest


def verdict(level: float, state: LevelState, goal: SearchGoal = "capacity") -> LevelVerdict:
    bad = state == "bad"
    cause: Cause | None = "kv_memory" if bad else None
    share = 0.9 if bad else 0.0
    return LevelVerdict(
        *(level, goal, state, share, share, share, 0.1, 50, cause),
        strength=50.0 if bad else -50.0,
        effective=50.0,
    )


def ended(cell: CellKey, reason: str = "complete") -> LevelSummary:
    return LevelSummary(cell=cell, n_ok=9, n_failed=0, window_s=9.0, reason=reason, took_s=10.0)


class Walked:
    """A policy over backends that hold so many requests, walked without a load."""

    def __init__(
        self,
        holds: dict[str, int],
        restartable: tuple[str, ...] = (),
        left_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.holds = holds
        self.verdicts = Verdicts()
        search = KneeSearch(
            [Searched(name, "paged", 18.0) for name in holds],
            512,
            64,
            self.verdicts.of,
            max_level=64,
            budget_left_s=left_s,
        )
        modes = dict.fromkeys(holds, "paged")
        self.policy = KneePolicy(search, self.verdicts, modes, (512, 64), restartable)
        self.done: list[LevelSummary] = []

    def step(self, reason: str = "complete") -> CellKey | None:
        cell = self.policy.next_cell(self.done)
        if cell is not None:
            state: LevelState = "good" if cell.level <= self.holds[cell.backend] else "bad"
            if reason == "complete":
                self.verdicts.note(cell, (verdict(cell.level, state),))
            self.done.append(ended(cell, reason))
        return cell

    def all(self) -> list[CellKey]:
        return list(iter(self.step, None))


def test_what_was_found_is_verified_where_the_server_is_ours() -> None:
    walked = Walked({"a": 18, "b": 18}, restartable=("a",))
    cells = walked.all()
    assert {cell.level for cell in cells} == {18, 19}
    last = cells[-1]
    assert (last.backend, last.level, last.variant) == ("a", 18, VERIFIED)
    assert [cell.variant for cell in cells].count(VERIFIED) == 1
    # the verified level is no part of what was found
    assert [found.last_good for found in walked.policy.found(walked.done)] == [18, 18]
    assert walked.policy.unfinished(walked.done) == set()


def test_a_level_that_was_cut_short_says_nothing() -> None:
    walked = Walked({"a": 18})
    walked.step()
    walked.step("interrupted")
    (found,) = walked.policy.found(walked.done)
    assert (found.status, found.last_good, found.first_bad) == ("budget", 18, None)
    assert walked.policy.unfinished(walked.done) == {"a"}
    assert walked.policy.goals_of(walked.done[-1].cell, walked.done) == ("capacity",)


def test_nothing_is_verified_when_the_time_is_up() -> None:
    left = [100.0]
    walked = Walked({"a": 40}, restartable=("a",), left_s=lambda: left[0])
    walked.step()
    left[0] = 0.0
    assert walked.step() is None
    assert walked.policy.found(walked.done)[0].status == "budget"


def test_what_was_found_is_not_verified_with_less_time_than_a_level_takes() -> None:
    left = [100.0]
    walked = Walked({"a": 18}, restartable=("a",), left_s=lambda: left[0])
    assert [cell.level for cell in (walked.step(), walked.step()) if cell] == [18, 19]
    assert walked.policy.found(walked.done)[0].status == "found"
    # each level has taken 10 s
    left[0] = 9.0
    assert walked.step() is None
    left[0] = 10.0
    cell = walked.step()
    assert cell is not None
    assert cell.variant == VERIFIED


class Clock:
    now_s = 50.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


def test_the_budget_runs_from_the_start_of_the_load() -> None:
    clock = Clock()
    deadline, endless = Deadline(60.0), Deadline(None)
    assert (deadline.left_s(), endless.left_s()) == (60.0, None)
    deadline.begin(clock)
    endless.begin(clock)
    clock.now_s = 75.0
    assert (deadline.left_s(), endless.left_s()) == (35.0, None)


def test_what_can_be_looked_for() -> None:
    limits = Slo(ttft_s=0.5)
    assert goals(limits, has_metrics=True) == ("capacity", "slo")
    assert goals(limits, has_metrics=False) == ("slo",)
    assert goals(Slo(), has_metrics=True) == ("capacity",)


def test_predictions_are_of_requests_at_once() -> None:
    work = manifest().workload
    # 127 blocks / 5 a request of 512 + 128; 16 MiB / 2 MiB a slot
    infos = [paged_info(), static_info(), paged_info(name="x", num_blocks=None)]
    assert predictions(work, infos) == {"paged": 25, "contiguous": 8}
    rates = msgspec.structs.replace(work, open_loop=OpenLoop())
    assert predictions(rates, infos) == {}


def test_the_step_of_a_rate_has_its_requests_in_time() -> None:
    work = msgspec.structs.replace(
        manifest().workload,
        levels=(64.0,),
        min_requests=(20,),
        max_level_s=125.0,
        open_loop=OpenLoop(warmup_s=5.0),
        search=KneeAsk(attainment=0.95),
    )
    # 20 / 120 s = 0.167
    assert rate_unit(work) == 0.2
    # 20 / 20 s
    assert rate_unit(msgspec.structs.replace(work, max_level_s=25.0)) == 1.0
    # never more than what may be asked for
    low = msgspec.structs.replace(work, levels=(0.1,))
    assert rate_unit(low) == 0.1
