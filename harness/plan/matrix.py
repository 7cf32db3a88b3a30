"""The cells of a matrix: which there are, which are left out and why. Pure.

A matrix is prompt lengths x output lengths x levels x backends. Short requests come first,
the backends alternate level by level as in every closed loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from harness.kv.capacity import predicted_capacity
from harness.kv.modes import mode_name, read_mode
from harness.manifest import BackendInfo
from harness.plan.estimate import CellTimes, about
from harness.plan.levels import Skip, interleaved_cells
from harness.records import CellKey, LevelSummary
from harness.workload import Workload

#: Between two levels users gather and backends change.
BETWEEN_S = 1.0


def matrix_cells(workload: Workload, backends: Sequence[BackendInfo]) -> list[CellKey]:
    """All cells of a matrix, in the order in which they are measured."""
    pairs = [(info.name, info.mode) for info in backends]
    return [
        cell
        for prompt_tokens, output_tokens in workload.shapes or ()
        for cell in interleaved_cells(
            pairs, workload.levels, prompt_tokens, output_tokens, workload.repeats
        )
    ]


def why_left_out(cell: CellKey, info: BackendInfo, *, skip_beyond_budget: bool) -> str | None:
    """Why a cell cannot be measured on a backend, in words; None when it can.

    ``skip_beyond_budget``: a level whose requests do not all fit is left out, too, instead
    of showing how they wait.
    """
    tokens = cell.prompt_tokens + cell.output_tokens
    if info.max_model_len is not None and tokens > info.max_model_len:
        return f"{tokens:,} tokens a request, the server's context holds {info.max_model_len:,}"
    room = _requests_in_budget(cell, info)
    if room is None:
        return None
    if room < 1:
        return f"the KV budget does not hold one request of {tokens:,} tokens"
    if skip_beyond_budget and cell.level > room:
        return f"the KV budget holds {room:,} of its {cell.level:g} requests"
    return None


def _requests_in_budget(cell: CellKey, info: BackendInfo) -> int | None:
    """How many such requests the KV memory alone holds; None when that is not known."""
    mode = read_mode(info.mode)
    # one at a time, or a batch of some, is no want of memory
    name = info.mode if mode is None else mode_name(mode.cache, mode.reserve)
    memory_only = msgspec.structs.replace(info, max_num_seqs=None, mode=name)
    found = predicted_capacity(memory_only, cell.prompt_tokens, cell.output_tokens)
    return None if found is None else found.requests


class MatrixLevels:
    """The policy of a matrix: one cell after the other, those left out with their reason."""

    def __init__(
        self,
        cells: Sequence[CellKey],
        left_out: Mapping[CellKey, str],
        budget_s: float | None = None,
        times: CellTimes | None = None,
        finished: Sequence[LevelSummary] = (),
    ) -> None:
        """``budget_s``: what would end later than this is left out, by the estimate.

        ``finished``: cells that are done already, whose time is part of the budget.
        """
        self.cells = tuple(cells)
        self.left_out = dict(left_out)
        self._place = {cell: place for place, cell in enumerate(self.cells)}
        self._budget_s = budget_s
        self._spent_s = _took_s(finished)
        self._times = times or CellTimes({}, {}, 0.0, 0.0)

    @property
    def planned(self) -> tuple[CellKey, ...]:
        """The cells that are not left out from the start."""
        return tuple(cell for cell in self.cells if cell not in self.left_out)

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | Skip | None:
        """The cell behind the last one that is done, for they are done in order."""
        place = self._place[done[-1].cell] + 1 if done else 0
        if place == len(self.cells):
            return None
        cell = self.cells[place]
        reason = self.left_out.get(cell) or self._beyond_budget(cell, done)
        return cell if reason is None else Skip(cell, reason)

    def _beyond_budget(self, cell: CellKey, done: Sequence[LevelSummary]) -> str | None:
        if self._budget_s is None:
            return None
        spent_s = self._spent_s + _took_s(done)
        expected_s = self._times.cell_s(cell, done)
        if spent_s + (expected_s or 0.0) <= self._budget_s:
            return None
        left = f"{about(max(0.0, self._budget_s - spent_s))} of --budget-minutes are left"
        if expected_s is None or spent_s >= self._budget_s:
            return left
        return f"{left}, it would take about {about(expected_s)}"


def _took_s(done: Sequence[LevelSummary]) -> float:
    """Time that measured levels took, with what lies between them."""
    return sum(BETWEEN_S + item.took_s for item in done if item.took_s is not None)
