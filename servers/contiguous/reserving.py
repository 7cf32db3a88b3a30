"""What a request reserves of a preallocated cache, and where it lies. Pure, no torch.

``max`` reserves max_model_len tokens, ``pow2`` prompt + max_tokens rounded up to a power of
two (at most max_model_len), ``exact`` prompt + max_tokens. With regions of different length
the arena fragments: a region is the first free piece that is long enough, and it never
moves, so a request may wait although the free bytes in all would do. These are the three
reservations that the PagedAttention paper compares paging with (Kwon et al., 2023, 6.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from servers.contiguous.admission import (
    Blocker,
    FreeSpace,
    Promise,
    WithoutRegions,
    over_budget,
)

Reserve = Literal["exact", "pow2", "max"]


def reserved_tokens(reserve: Reserve, tokens: int, max_model_len: int) -> int:
    """Tokens set aside for a request that can come to hold ``tokens``."""
    if reserve == "exact":
        return tokens
    if reserve == "pow2":
        return max(tokens, min(1 << max(0, tokens - 1).bit_length(), max_model_len))
    return max(tokens, max_model_len)


@dataclass(frozen=True)
class ArenaPolicy:
    """Regions of an arena of ``arena_tokens`` tokens, first fit by address."""

    arena_tokens: int
    bytes_per_token: int
    max_num_seqs: int
    max_model_len: int
    reserve: Reserve

    def region_tokens(self, promise: Promise) -> int:
        """Length of a request's region."""
        return reserved_tokens(self.reserve, promise.tokens, self.max_model_len)

    def blocker(self, running: Sequence[Promise], promise: Promise) -> Blocker | None:
        """A free piece that is long enough is what a request needs."""
        if len(running) >= self.max_num_seqs:
            return "seqs"
        if self._fit(running, promise) is not None:
            return None
        free = sum(length for _, length in self._pieces(running))
        return "region" if free >= self.region_tokens(promise) else "kv"

    def start(self, running: Sequence[Promise], promise: Promise) -> int:
        """First token of the first piece that is long enough; ValueError without one."""
        at = self._fit(running, promise)
        if at is None:
            raise ValueError("no free piece of the arena is long enough")
        return at

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """The regions' lengths, however few tokens they hold."""
        return sum(self.region_tokens(promise) for promise in running) * self.bytes_per_token

    def free_space(self, running: Sequence[Promise]) -> FreeSpace:
        """In all and in the longest piece."""
        lengths = [length for _, length in self._pieces(running)]
        return FreeSpace(
            sum(lengths) * self.bytes_per_token, max(lengths, default=0) * self.bytes_per_token
        )

    def refusal(self, promise: Promise) -> str | None:
        """A region longer than the arena."""
        budget = self.arena_tokens * self.bytes_per_token
        return over_budget(self.region_tokens(promise), budget, self.bytes_per_token)

    def _fit(self, running: Sequence[Promise], promise: Promise) -> int | None:
        need = self.region_tokens(promise)
        return next((at for at, length in self._pieces(running) if length >= need), None)

    def _pieces(self, running: Sequence[Promise]) -> Iterator[tuple[int, int]]:
        """(first token, length) of each free piece, by address."""
        at = 0
        for promise in sorted(running, key=lambda promise: promise.start):
            if promise.start > at:
                yield at, promise.start - at
            at = promise.start + self.region_tokens(promise)
        if at < self.arena_tokens:
            yield at, self.arena_tokens - at


@dataclass(frozen=True)
class RectanglePolicy(WithoutRegions):
    """One left-padded batch at a time: every row has the same columns.

    A batch needs the longest prompt + the longest answer of its rows, since all prompts
    end in the same column. ``reserve`` says what is set aside for that many columns; where
    it is None the batch grows and nothing is preallocated.
    """

    budget_bytes: int
    bytes_per_token: int
    batch_size: int
    max_model_len: int
    reserve: Reserve | None

    @property
    def pool_tokens(self) -> int:
        """Tokens to allocate where memory is preallocated: what a batch could use at most."""
        most = self.batch_size * self.max_model_len
        return min(self.budget_bytes // self.bytes_per_token, most)

    @property
    def slots(self) -> int | None:
        """Rows of max_model_len that exist; None where rows are shorter."""
        return self.pool_tokens // self.max_model_len if self.reserve == "max" else None

    def columns(self, rows: Sequence[Promise]) -> int:
        """Tokens set aside for each row of a batch."""
        need = _columns(rows)
        return (
            need
            if self.reserve is None
            else reserved_tokens(self.reserve, need, self.max_model_len)
        )

    def blocker(self, running: Sequence[Promise], promise: Promise) -> Blocker | None:
        """The batch with one more row must fit, and a preallocated row has its longest length."""
        if len(running) >= self.batch_size:
            return "seqs"
        rows = [*running, promise]
        if self.reserve is not None and _columns(rows) > self.max_model_len:
            return "kv"
        return "kv" if self.reserved_bytes(rows) > self.budget_bytes else None

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """Rows x columns, until the whole batch has ended."""
        return len(running) * self.columns(running) * self.bytes_per_token

    def refusal(self, promise: Promise) -> str | None:
        """A row that alone is more than the budget."""
        return over_budget(self.columns([promise]), self.budget_bytes, self.bytes_per_token)


def _columns(rows: Sequence[Promise]) -> int:
    if not rows:
        return 0
    return max(row.prompt_tokens for row in rows) + max(row.output_tokens for row in rows)
