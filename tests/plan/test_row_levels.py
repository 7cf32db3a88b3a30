"""Which request of which level is asked for."""

from __future__ import annotations

from statistics import fmean

import pytest

from harness.plan.levels import interleaved_cells
from harness.plan.row_levels import (
    ConversationLevels,
    MixLevels,
    PrefixLevels,
    prompt_at,
    reuses,
    variants,
)
from harness.plan.traces import TraceRow
from harness.records import CellKey, LevelSummary
from harness.workload import Conversations, SharedPrefix

CELLS = interleaved_cells([("a", "paged"), ("b", "static")], (4.0,), 80, 16)
TALK = Conversations(system_tokens=100, turns=3, user_tokens=20, think_s=2.0)


def done(cell: CellKey) -> LevelSummary:
    return LevelSummary(cell=cell, n_ok=1, n_failed=0, window_s=1.0, reason="complete")


def test_a_mix_begins_anew_at_its_end_and_is_the_same_for_all() -> None:
    rows = [TraceRow(0.0, 5, 1), TraceRow(0.0, 9, 2), TraceRow(0.0, 7, 3)]
    levels = MixLevels(CELLS, rows)
    for cell in CELLS:
        assert [levels.row(cell, i) for i in range(5)] == [*rows, *rows[:2]]
    assert levels.longest_prompt == 9
    assert levels.shared_tokens(rows[0]) is None


@pytest.mark.parametrize("share", [0.0, 0.1, 0.29, 0.5, 0.9, 1.0])
def test_a_share_is_spread_evenly(share: float) -> None:
    """Of any n requests in a row it is n x share, one more or less."""
    asked = [reuses(share, index) for index in range(200)]
    assert sum(asked[:100]) == round(100 * share)
    for start in range(0, 100, 7):
        for length in (1, 10, 33):
            assert abs(sum(asked[start : start + length]) - length * share) < 1 + 1e-6


def test_each_share_is_a_variant_one_after_the_other() -> None:
    levels = PrefixLevels(CELLS, SharedPrefix(prefix_tokens=64, reuse=(0.0, 0.9)), 80, 16)
    assert [(cell.backend, cell.variant) for cell in levels.cells] == [
        *(("a", "reuse 0"), ("a", "reuse 0.9"), ("b", "reuse 0"), ("b", "reuse 0.9")),
    ]
    without, with_ = levels.cells[:2]
    assert levels.next_cell([done(without)]) == with_
    assert {levels.row(without, i).blocks for i in range(20)} == {()}
    shared = [levels.row(with_, i) for i in range(20)]
    assert sum(bool(row.blocks) for row in shared) == 18
    assert {(row.prompt_tokens, row.output_tokens) for row in shared} == {(80, 16)}
    assert [levels.shared_tokens(row) for row in shared[:2]] == [0, 64]
    assert levels.block_tokens == 64


def test_variants_keep_the_rest() -> None:
    made = variants(CELLS[:1], ("x", "y"))
    assert [cell.label for cell in made] == ["a 80+16 c4 x", "a 80+16 c4 y"]
    assert made[0].level == CELLS[0].level


def test_a_turn_sends_all_that_was_said() -> None:
    """100 system; then 20 of the user, 16 of the server, 20, 16, 20."""
    assert [prompt_at(TALK, 16, turn) for turn in (1, 2, 3)] == [120, 156, 192]


def test_thinking_is_seeded_and_the_same_for_every_backend() -> None:
    levels = ConversationLevels(CELLS, TALK, 16, seed=1)
    a, b = CELLS
    times = [levels.think_s(a, conversation, 1) for conversation in range(2000)]
    assert times == [levels.think_s(b, conversation, 1) for conversation in range(2000)]
    # the mean of 2,000 exponentials is within 3 / sqrt(2,000) = 7 % in 997 of 1,000 cases
    assert abs(fmean(times) / 2.0 - 1.0) < 0.07
    other = ConversationLevels(CELLS, TALK, 16, seed=2)
    assert other.think_s(a, 0, 1) != times[0]


def test_nobody_has_to_think() -> None:
    asked = Conversations(system_tokens=0, turns=1, user_tokens=1, think_s=0.0)
    assert ConversationLevels(CELLS, asked, 16, seed=1).think_s(CELLS[0], 3, 1) == 0.0
