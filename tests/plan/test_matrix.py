"""Cells of a matrix: their order, what is left out and why, and the limit of minutes."""

from __future__ import annotations

import msgspec
import pytest

from harness.manifest import BackendInfo
from harness.plan.estimate import CellTimes, Speed
from harness.plan.levels import Skip
from harness.plan.matrix import BETWEEN_S, MatrixLevels, matrix_cells, why_left_out
from harness.plan.matrix_text import plan_lines
from harness.records import CellKey, LevelSummary
from harness.workload import Workload
from tests.support.fake_server import paged_info, static_info

WORK = Workload(
    scenario="matrix",
    endpoint="completions",
    prompt_tokens=512,
    output_tokens=128,
    levels=(1.0, 4.0),
    min_requests=(10, 20),
    min_level_s=0.0,
    max_level_s=60.0,
    request_timeout_s=60.0,
    idle_timeout_s=60.0,
    shapes=((128, 32), (512, 128)),
)
PAGED, STATIC = paged_info(), static_info()
DYNAMIC = static_info(mode="dynamic")


def done(cell: CellKey, took_s: float) -> LevelSummary:
    return LevelSummary(
        cell=cell, n_ok=1, n_failed=0, window_s=1.0, reason="complete", took_s=took_s
    )


def test_short_requests_come_first_and_backends_alternate() -> None:
    cells = matrix_cells(WORK, [PAGED, STATIC])
    assert [c.label for c in cells] == [
        "paged 128+32 c1",
        "contiguous 128+32 c1",
        "contiguous 128+32 c4",
        "paged 128+32 c4",
        "paged 512+128 c1",
        "contiguous 512+128 c1",
        "contiguous 512+128 c4",
        "paged 512+128 c4",
    ]
    assert {c.mode for c in cells} == {"paged", "static"}


@pytest.mark.parametrize(
    ("info", "shape", "level", "skip", "words"),
    [
        # 2,000 + 48 = 2,048 is all that a context of 2,048 holds
        (PAGED, (2000, 48), 1, True, None),
        (PAGED, (2000, 49), 1, False, "2,049 tokens a request, the server's context holds 2,048"),
        # 127 usable blocks of 128; 512 + 128 take 5 each: 25 fit
        (PAGED, (512, 128), 25, True, None),
        (PAGED, (512, 128), 26, True, "the KV budget holds 25 of its 26 requests"),
        (PAGED, (512, 128), 26, False, None),
        # 16 MiB / (2,048 x 1,024 B) = 8 slots, however short a request is
        (STATIC, (128, 32), 9, True, "the KV budget holds 8 of its 9 requests"),
        # 16 MiB / (640 x 1,024 B) = 25.6
        (DYNAMIC, (512, 128), 26, True, "the KV budget holds 25 of its 26 requests"),
        # 1 MiB holds 1,024 tokens
        (
            static_info(mode="dynamic", kv_budget_bytes=2**20),
            (1000, 25),
            1,
            False,
            "the KV budget does not hold one request of 1,025 tokens",
        ),
        # one at a time by choice is no want of memory
        (static_info(mode="static/none"), (128, 32), 8, True, None),
        # regions of 1,024 tokens, each a MiB: 16
        (
            static_info(mode="static/pow2"),
            (512, 128),
            17,
            True,
            "the KV budget holds 16 of its 17 requests",
        ),
        # max_num_seqs is no want of memory either
        (static_info(mode="dynamic", max_num_seqs=2), (512, 128), 25, True, None),
        # nothing is known of its memory
        (msgspec.structs.replace(STATIC, kind="openai", mode="default"), (9, 9), 99, True, None),
    ],
)
def test_what_a_server_cannot_hold_is_left_out(
    info: BackendInfo, shape: tuple[int, int], level: float, skip: bool, words: str | None
) -> None:
    cell = CellKey(info.name, info.mode, *shape, level)
    assert why_left_out(cell, info, skip_beyond_budget=skip) == words


def test_the_policy_gives_each_cell_once_and_the_left_out_with_their_reason() -> None:
    cells = matrix_cells(WORK, [PAGED])
    policy = MatrixLevels(cells, {cells[1]: "too long"})
    seen: list[CellKey | Skip] = []
    summaries: list[LevelSummary] = []
    while (step := policy.next_cell(summaries)) is not None:
        seen.append(step)
        summaries.append(done(step.cell if isinstance(step, Skip) else step, 1.0))
    assert seen == [cells[0], Skip(cells[1], "too long"), *cells[2:]]
    assert policy.planned == (cells[0], *cells[2:])


def test_cells_beyond_the_minutes_are_left_out_and_shorter_ones_are_not() -> None:
    """TPOT 0.1 s, no prefill. Level 1, 10 requests: a round of 31 x 0.1 = 3.1 s; warm-up
    3.1 + window 31 + follow-up 3.1 = 37.2 s. Level 4, 20 requests: 5 rounds, 21.7 s."""
    cells = matrix_cells(WORK, [PAGED])
    times = CellTimes.of(WORK, {"paged": Speed(0.0, 0.0, 0.1)})
    assert times.cell_s(cells[0]) == pytest.approx(37.2)
    assert times.cell_s(cells[1]) == pytest.approx(21.7)
    policy = MatrixLevels(cells, {}, budget_s=60.0, times=times)
    assert policy.next_cell([]) == cells[0]
    first = done(cells[0], 37.2)
    # 37.2 + 1 between are spent: 21.8 s are left, and 21.7 fit
    assert BETWEEN_S == 1.0
    assert policy.next_cell([first]) == cells[1]
    slower = done(cells[0], 38.0)
    step = policy.next_cell([slower])
    assert isinstance(step, Skip)
    assert step.reason == "21 s of --budget-minutes are left, it would take about 22 s"
    # what an interrupted run had finished before is spent, too
    resumed = MatrixLevels(cells[1:], {}, budget_s=60.0, times=times, finished=[slower])
    assert resumed.next_cell([]) == step
    # what was left out took no time
    skipped = msgspec.structs.replace(done(cells[1], 0.0), took_s=None)
    last = policy.next_cell([slower, skipped])
    assert isinstance(last, Skip)


def test_the_plan_shows_cells_requests_and_time_as_an_estimate() -> None:
    cells = matrix_cells(WORK, [PAGED, STATIC])
    reasons = {cells[6]: "the KV budget holds 2 of its 4 requests"}
    times = CellTimes.of(WORK, {"paged": Speed(0.0, 0.0, 0.1), "contiguous": Speed(0.0, 0.0, 0.1)})
    policy = MatrixLevels(cells, reasons)
    lines = plan_lines(policy, WORK, times, (), 3600.0)
    assert lines[0].split() == ["prompt", "output", "backend", "levels", "requests", "about",
                                "left", "out"]  # fmt: skip
    # 37.2 + 21.7 s
    assert lines[2].split() == ["128", "32", "paged", "1,4", "30", "59", "s"]
    assert "4: the KV budget holds 2 of its 4 requests" in lines[3]
    assert "7 cells to measure, 100 counted requests; 1 cell left out" in lines
    assert any(line.startswith("time: about ") and "an estimate" in line for line in lines)
    assert any(line.startswith("--budget-minutes 60: ") for line in lines)


def test_without_an_answered_probe_no_time_is_made_up() -> None:
    policy = MatrixLevels(matrix_cells(WORK, [PAGED]), {})
    lines = plan_lines(policy, WORK, CellTimes.of(WORK, {}), (), None)
    assert lines[-1] == "time: not known, no probe was answered"
