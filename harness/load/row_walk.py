"""A closed loop whose requests have lengths, and shared prefixes, of their own.

Users and levels are those of ``harness.load.session``; only what a request says differs. A
level's requests are numbered as they are sent, so every backend is asked the same list in
the same order, whichever user sends which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from harness.errors import KvkneeError
from harness.load.crew import Crew, Member, Words
from harness.load.preflight import PreparedBackend
from harness.load.session import Session
from harness.plan.levels import LevelPolicy
from harness.plan.prompts import TokenPrompts
from harness.plan.replay_prompts import ReplayPrompts
from harness.plan.row_levels import RowLevels
from harness.records import CellKey


class RowSession(Session):
    """The walk; its policy is a RowLevels."""

    def _make_crew(self, policy: LevelPolicy) -> Callable[..., Crew]:
        if not isinstance(policy, RowLevels):
            raise TypeError("lists of requests need the policy RowLevels")
        return partial(RowCrew, policy)


class RowCrew(Crew):
    """Users that take the next request of a list."""

    def __init__(self, policy: RowLevels, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._policy = policy
        self._sent: Counter[CellKey] = Counter()
        self._cell_prompts = CellPrompts(
            policy.cells, self._backends, policy.longest_prompt, policy.block_tokens
        )

    def _words(self, cell: CellKey, member: Member, number: int) -> Words:
        row = self._policy.row(cell, self._sent[cell])
        self._sent[cell] += 1
        return Words(
            self._cell_prompts.of(cell).prompt(number, row),
            row.prompt_tokens,
            row.output_tokens,
            self._policy.shared_tokens(row),
        )


class CellPrompts:
    """Makes prompts of any length; those of two cells share nothing.

    A system prompt that an earlier level has left in a prefix cache would else be found again.
    """

    def __init__(
        self,
        cells: tuple[CellKey, ...],
        backends: Mapping[str, PreparedBackend],
        longest: int,
        block_tokens: int,
    ) -> None:
        """``longest``: prompt tokens of the longest request."""
        self._places = {cell: place for place, cell in enumerate(cells)}
        self._backends = backends
        self._longest = longest
        self._block_tokens = block_tokens
        self._made: dict[CellKey, ReplayPrompts] = {}

    def of(self, cell: CellKey) -> ReplayPrompts:
        """Those of one cell."""
        if cell not in self._made:
            base = self._backends[cell.backend].prompts
            if not isinstance(base, TokenPrompts):
                raise KvkneeError("requests of many lengths need prompts of token ids")
            place = self._places[cell]
            self._made[cell] = ReplayPrompts(base, self._longest, self._block_tokens, place)
        return self._made[cell]
