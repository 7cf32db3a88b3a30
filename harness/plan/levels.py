"""The level policy: from the summaries of completed levels to the next level, or stop.

It is a pure function, called between levels; the load asks it and does as it says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from harness.errors import OptionError
from harness.manifest import BackendInfo
from harness.records import CellKey, LevelSummary
from harness.workload import Workload

#: concurrent requests that may be asked for: more than one process can hold open
MAX_LEVEL = 100_000
#: levels in one list
MAX_LEVELS = 1_000
#: ASCII digits only: ``int`` would also take other scripts' and ``1_0``
_WHOLE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Skip:
    """A cell that is left out on purpose, and why."""

    cell: CellKey
    reason: str


class LevelPolicy(Protocol):
    """Decides the next level from what the completed ones gave."""

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | Skip | None:
        """The next cell to measure, the next one to leave out, or None to stop.

        A cell that was left out stands in ``done`` when it is asked again.
        """
        ...


class FixedLevels:
    """A list of cells, in order, whatever the results."""

    def __init__(self, cells: Sequence[CellKey]) -> None:
        self.cells = tuple(cells)

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        """The first cell that has no summary yet."""
        finished = {summary.cell for summary in done}
        return next((cell for cell in self.cells if cell not in finished), None)


def interleaved_cells(
    backends: Sequence[tuple[str, str]],
    levels: Sequence[float],
    prompt_tokens: int,
    output_tokens: int,
    repeats: int = 1,
) -> list[CellKey]:
    """Cells with the backends alternating level by level, so that drift hits all alike.

    ``backends`` are (name, mode) pairs. Every second level starts with the other end of
    the list, so that no backend is always the one measured on a warmer machine.
    """
    cells: list[CellKey] = []
    for repeat in range(repeats):
        for index, level in enumerate(levels):
            order = list(backends) if (index + repeat) % 2 == 0 else list(reversed(backends))
            cells += [
                CellKey(name, mode, prompt_tokens, output_tokens, level, repeat)
                for name, mode in order
            ]
    return cells


def asked_cells(workload: Workload, backends: Sequence[BackendInfo]) -> list[CellKey]:
    """The cells that a workload lists, for all backends, interleaved."""
    return interleaved_cells(
        [(backend.name, backend.mode) for backend in backends],
        workload.levels,
        workload.prompt_tokens,
        workload.output_tokens,
        workload.repeats,
    )


def parse_levels(text: str, option: str = "--levels") -> tuple[float, ...]:
    """Read ``1,4,16,32``: whole numbers, 1 to MAX_LEVEL, rising; raises OptionError."""
    parts = [part.strip() for part in text.split(",")]
    levels = [int(part) for part in parts if _WHOLE.fullmatch(part)]
    rising = all(a < b for a, b in pairwise(levels))
    if len(levels) < len(parts) or not rising or not 1 <= levels[0] <= levels[-1] <= MAX_LEVEL:
        expected = f"rising whole numbers such as 1,4,16,32, the last at most {MAX_LEVEL}"
        raise OptionError(option, text, expected)
    if len(levels) > MAX_LEVELS:
        raise OptionError(option, text, f"at most {MAX_LEVELS} levels")
    return tuple(float(level) for level in levels)
