"""Batches that run until all of them has ended; used on the engine's thread only.

What waits when the last batch has ended becomes the next one, up to its size and to what
the budget holds, and at least one request; nobody joins it later. The prompts are prefilled
together, left-padded, in chunks of columns; then each forward gives every row a token,
which is sent at once. A row whose request has ended or whose client has left goes on being
computed, without events, and its memory stays reserved until the batch has ended.
A forward that raises ends the whole batch with error events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

import torch

from servers.contiguous.cache import Held
from servers.contiguous.cache_padded import PaddedCache
from servers.contiguous.reporting import Reporter, failure, give_memory_back, log_failure
from servers.contiguous.sequence import ErrorEvent, Sequence


class PaddedForwards(Protocol):
    """Forwards over a padded batch (``PaddedRunner``)."""

    cache: PaddedCache

    def advance(self, ids: Seq[Seq[int]]) -> torch.Tensor:
        """Store new columns, ``[rows, new]`` ids; the logits ``[rows, vocab]`` of the last."""
        ...


class StaticBatch:
    """``keep`` ends requests whose memory stays taken, ``release_kept`` frees all of it."""

    def __init__(
        self,
        runner: PaddedForwards,
        report: Reporter,
        *,
        prefill_chunk: int,
        admit: Callable[[], Sequence | None],
        keep: Callable[[Iterable[Sequence]], None],
        release_kept: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._cache = runner.cache
        self._report = report
        self._prefill_chunk = prefill_chunk
        self._admit = admit
        self._keep = keep
        self._release_kept = release_kept
        #: None where a row's request has ended
        self._rows: list[Sequence | None] = []
        #: what each row is fed next: its padded prompt, then its newest token
        self._next: list[list[int]] = []
        self.held = Held(0, 0, 0)

    def step(self) -> bool:
        """One forward, of a new batch if there is none; False when there was nothing to do."""
        if not self._rows and not self._begin():
            return False
        try:
            self._forward()
        except Exception as error:
            live = self._live()
            doing = "decoding" if any(sequence.prefilled for sequence in live) else "prefilling"
            log_failure(error, f"{doing} failed; {len(live)} request(s) end with an error")
            self._end_batch()
            self._report.failed(live, failure(f"{doing} failed", error))
            give_memory_back(error)
        return True

    def cancel(self, sequence: Sequence) -> None:
        """No event follows for a request whose client has left, if it still runs."""
        if sequence in self._rows:
            self._end({sequence: "cancelled"})

    def end_all(self, waiting: list[Sequence], event: ErrorEvent) -> None:
        """End all that run, and those that only waited, with one error event."""
        running = self._live()
        self._end_batch()
        self._report.failed(running + waiting, event)

    def _begin(self) -> bool:
        """Take what waits; False when nobody does."""
        while (sequence := self._admit()) is not None:
            self._rows.append(sequence)
            self._report.admitted(sequence)
        rows = self._live()
        if not rows:
            return False
        longest = max(len(sequence.prompt_ids) for sequence in rows)
        # any id will do for padding: attention does not see it
        self._next = [
            [0] * (longest - len(sequence.prompt_ids)) + sequence.prompt_ids for sequence in rows
        ]
        self._cache.begin([sequence.promise for sequence in rows])
        return True

    def _forward(self) -> None:
        # a chunk is so many tokens in all, since what a forward needs grows with them
        size = max(1, self._prefill_chunk // len(self._rows))
        chunk = [ids[:size] for ids in self._next]
        logits = self._runner.advance(chunk)
        self._note_held()
        self._next = [ids[size:] for ids in self._next]
        if not self._next[0]:
            self._choose(logits)

    def _choose(self, logits: torch.Tensor) -> None:
        """A token for each row whose request runs; the others are fed any."""
        live = [row for row, sequence in enumerate(self._rows) if sequence is not None]
        running = self._live()
        for sequence in running:
            if sequence.prefilled == 0:
                sequence.prefilled = len(sequence.prompt_ids)
                self._report.metrics.prompt_tokens.inc(sequence.prefilled)
        finished = self._report.choose(running, logits[live])
        self._next = [[0 if row is None else row.last_token] for row in self._rows]
        if finished:
            self._end(finished)

    def _end(self, outcomes: dict[Sequence, str]) -> None:
        """Count requests that have ended; the batch ends with its last one."""
        for sequence in outcomes:
            row = self._rows.index(sequence)
            self._rows[row] = None
            self._cache.end_row(row)
        if not self._live():
            self._keep(outcomes)
            self._end_batch()
        else:
            self._note_held()
            self._keep(outcomes)
        self._report.ended(outcomes)

    def _end_batch(self) -> None:
        live = self._live()
        self._cache.clear()
        self._rows, self._next = [], []
        # in this order, so that nobody reads more used than reserved in between
        self._note_held()
        self._keep(live)
        self._release_kept()

    def _live(self) -> list[Sequence]:
        return [sequence for sequence in self._rows if sequence is not None]

    def _note_held(self) -> None:
        self.held = self._cache.held()
