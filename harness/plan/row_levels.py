"""Closed loops whose requests differ: which request of which level is asked for. Pure."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec.structs import replace

from harness.plan.levels import FixedLevels
from harness.plan.traces import TraceRow
from harness.records import CellKey
from harness.workload import Conversations, SharedPrefix

#: The block id of a level's system prompt.
SYSTEM_BLOCK = 0


class RowLevels(FixedLevels, ABC):
    """Levels, in order, each a list of requests without end, the same for every backend."""

    #: prompt tokens of the longest request, and of one shared block
    longest_prompt: int
    block_tokens: int

    @abstractmethod
    def row(self, cell: CellKey, index: int) -> TraceRow:
        """Request ``index``, from 0, of a level."""

    def shared_tokens(self, row: TraceRow) -> int | None:
        """Leading tokens of its prompt that others have, too; None where nothing is shared."""
        return None


class MixLevels(RowLevels):
    """A list of lengths, begun again at its end."""

    block_tokens = 1

    def __init__(self, cells: Sequence[CellKey], rows: Sequence[TraceRow]) -> None:
        super().__init__(cells)
        self._rows = tuple(rows)
        self.longest_prompt = max(row.prompt_tokens for row in rows)

    def row(self, cell: CellKey, index: int) -> TraceRow:
        """The list's."""
        return self._rows[index % len(self._rows)]


class PrefixLevels(RowLevels):
    """One length; of each level's requests a share begins with its system prompt.

    Which ones is spread evenly: of any n requests in a row floor or ceil of n x share.
    """

    def __init__(
        self,
        cells: Sequence[CellKey],
        asked: SharedPrefix,
        prompt_tokens: int,
        output_tokens: int,
    ) -> None:
        """``prompt_tokens``: of the whole prompt, the system prompt included."""
        super().__init__(variants(cells, reuse_variants(asked.reuse)))
        self._reuse = dict(zip(reuse_variants(asked.reuse), asked.reuse, strict=True))
        self.block_tokens = asked.prefix_tokens
        self.longest_prompt = prompt_tokens
        self._own = TraceRow(0.0, prompt_tokens, output_tokens)
        self._shared = self._own._replace(blocks=(SYSTEM_BLOCK,))

    def row(self, cell: CellKey, index: int) -> TraceRow:
        """With or without the shared block."""
        share = self._reuse[cell.variant]
        return self._shared if reuses(share, index) else self._own

    def shared_tokens(self, row: TraceRow) -> int | None:
        """The system prompt, or none."""
        return self.block_tokens if row.blocks else 0


class ConversationLevels(FixedLevels):
    """Levels whose users hold conversations."""

    def __init__(
        self, cells: Sequence[CellKey], asked: Conversations, output_tokens: int, seed: int
    ) -> None:
        super().__init__(cells)
        self.asked = asked
        self.output_tokens = output_tokens
        self._seed = seed

    def think_s(self, cell: CellKey, conversation: int, turn: int) -> float:
        """How long the user waits after the answer of a turn; the same for every backend."""
        mean = self.asked.think_s
        if not mean:
            return 0.0
        name = f"think/{self._seed}/{cell.level!r}/{cell.repeat}/{conversation}/{turn}"
        draw = random.Random(name)  # noqa: S311 - not for secrets
        return draw.expovariate(1.0 / mean)


def prompt_at(asked: Conversations, output_tokens: int, turn: int) -> int:
    """Prompt tokens of a turn, counted from 1: all that was said before, and the user's words."""
    return asked.system_tokens + turn * asked.user_tokens + (turn - 1) * output_tokens


def reuses(share: float, index: int) -> bool:
    """Whether request ``index`` is among the share, spread evenly (Bresenham's line)."""
    # a share such as 0.29 is a little less in binary, and 100 x 0.29 must be 29
    return math.floor((index + 1) * share + 1e-9) > math.floor(index * share + 1e-9)


def reuse_variants(shares: Sequence[float]) -> tuple[str, ...]:
    """What cells of these shares are called."""
    return tuple(f"reuse {share:g}" for share in shares)


def variants(cells: Sequence[CellKey], names: Sequence[str]) -> list[CellKey]:
    """Every cell once per variant, one after the other, so that drift hits them alike."""
    return [replace(cell, variant=name) for cell in cells for name in names]
