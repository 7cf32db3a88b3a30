"""The level policy: from the summaries of completed levels to the next level, or stop.

It is a pure function, called between levels; the load asks it and does as it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from harness.errors import OptionError
from harness.records import CellKey, LevelSummary


class LevelPolicy(Protocol):
    """Decides the next level from what the completed ones gave."""

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        """The next cell to measure, or None to stop."""
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


def parse_levels(text: str, option: str = "--levels") -> tuple[float, ...]:
    """Read ``1,4,16,32``: whole numbers, 1 or more, rising; raises OptionError."""
    expected = "rising whole numbers such as 1,4,16,32"
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(option, text, expected) from None
    if min(levels) < 1 or any(b <= a for a, b in pairwise(levels)):
        raise OptionError(option, text, expected)
    return tuple(float(level) for level in levels)
