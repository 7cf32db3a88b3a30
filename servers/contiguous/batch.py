"""The running requests and their steps; used on the engine's thread only.

A step does three things, in this order:

1. at most ``prefill_chunk`` prompt tokens are prefilled, first come first served, one
   request at a time, so a running stream waits for at most one chunk between two tokens;
2. one forward decodes a token for every running request;
3. each token is handed over at once, as an event of its own.

Between steps, requests whose client has left are dropped and their cache is freed. A
forward that raises ends the requests it touched with an error event; the rest go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

import torch

from servers.contiguous.cache import Held, Rows, part_bytes
from servers.contiguous.reporting import Reporter, failure, give_memory_back, log_failure
from servers.contiguous.sequence import ErrorEvent, Sequence


class Runner(Protocol):
    """Forwards over a batch (``ModelRunner``, or ``RecomputeRunner`` without a cache)."""

    @property
    def cache(self) -> Rows:
        """The batch."""
        ...

    @property
    def whole_prompts(self) -> bool:
        """Whether a prompt must come in one piece; then one chunk may be longer than the rest."""
        ...

    def prefill(self, ids: Seq[int]) -> torch.Tensor:
        """Store a chunk of the prefilling request; logits ``[1, vocab]``."""
        ...

    def decode(self, tokens: Seq[int]) -> torch.Tensor:
        """Store one token per decoding row; logits ``[rows, vocab]``."""
        ...


class Batch:
    """``admit`` gives the next request that may start, ``release`` takes back its budget."""

    def __init__(
        self,
        runner: Runner,
        report: Reporter,
        *,
        prefill_chunk: int,
        admit: Callable[[], Sequence | None],
        release: Callable[[Iterable[Sequence]], None],
    ) -> None:
        self._runner = runner
        self._cache = runner.cache
        self._report = report
        self._prefill_chunk = prefill_chunk
        self._admit = admit
        self._release = release
        self._prefilling: Sequence | None = None
        #: in the order of the cache's decoding rows
        self._running: list[Sequence] = []
        self.held = Held(0, 0, 0)

    def step(self) -> bool:
        """One round; False when there was nothing to do."""
        worked = self._prefill_some()
        if self._running:
            self._decode()
            return True
        return worked

    def cancel(self, sequence: Sequence) -> None:
        """Drop a request whose client has left, if it still runs."""
        if sequence is self._prefilling or sequence in self._running:
            self._end({sequence: "cancelled"})

    def end_all(self, waiting: list[Sequence], event: ErrorEvent) -> None:
        """End all that run, and those that only waited, with one error event."""
        running = self._running + ([self._prefilling] if self._prefilling else [])
        self._prefilling, self._running = None, []
        self._cache.drop_prefill()
        self._cache.clear()
        self._note_held()
        self._release(running)
        self._report.failed(running + waiting, event)

    # ---- prefill

    def _prefill_some(self) -> bool:
        """Spend one chunk of prompt tokens, on several requests if they are short."""
        left = self._prefill_chunk
        while left > 0:
            sequence = self._prefilling or self._begin()
            if sequence is None:
                break
            most = None if self._runner.whole_prompts else sequence.prefilled + left
            chunk = sequence.prompt_ids[sequence.prefilled : most]
            left -= len(chunk)
            try:
                logits = self._prefill(sequence, chunk)
            except Exception as error:
                self._failed([sequence], "prefilling", error)
            else:
                if sequence.prefilled == len(sequence.prompt_ids):
                    self._join(sequence, logits)
        return left < self._prefill_chunk

    def _begin(self) -> Sequence | None:
        sequence = self._prefilling = self._admit()
        if sequence is not None:
            self._report.admitted(sequence)
        return sequence

    def _prefill(self, sequence: Sequence, chunk: list[int]) -> torch.Tensor:
        if sequence.prefilled == 0:
            self._cache.start_prefill(sequence.kv_start)
        logits = self._runner.prefill(chunk)
        sequence.prefilled += len(chunk)
        self._report.metrics.prompt_tokens.inc(len(chunk))
        self._note_held()
        return logits

    def _join(self, sequence: Sequence, logits: torch.Tensor) -> None:
        """Let it decode with the others; one that cannot join leaves them as they are."""
        doing = "joining the batch"
        try:
            self._cache.join()
            self._prefilling = None
            self._running.append(sequence)
            self._note_held()
            doing = "choosing a token"
            self._emit([sequence], logits)
        except Exception as error:
            self._failed([sequence], doing, error)

    # ---- decode

    def _decode(self) -> None:
        running = list(self._running)
        try:
            logits = self._runner.decode([sequence.last_token for sequence in running])
            self._emit(running, logits)
        except Exception as error:
            self._failed(running, "decoding", error)
        self._note_held()

    def _emit(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        """Choose a token for each, hand them over, and let go of the finished."""
        finished = self._report.choose(sequences, logits)
        if finished:
            self._end(finished)

    # ---- endings

    def _end(self, outcomes: dict[Sequence, str]) -> None:
        """Free what they hold and count them."""
        self._drop(list(outcomes))
        self._report.ended(outcomes)

    def _failed(self, sequences: list[Sequence], doing: str, error: Exception) -> None:
        """End what a failed forward touched; the cache may be half written, so rows go whole."""
        log_failure(error, f"{doing} failed; {len(sequences)} request(s) end with an error")
        lost = [sequence for sequence in sequences if self._is_active(sequence)]
        self._drop(lost)
        self._report.failed(lost, failure(f"{doing} failed", error))
        give_memory_back(error)

    def _drop(self, sequences: list[Sequence]) -> None:
        """Take them out of the cache, the batch and the budget."""
        if self._prefilling in sequences:
            self._prefilling = None
            self._cache.drop_prefill()
        before = self._running
        rows = [row for row, sequence in enumerate(before) if sequence in sequences]
        if len(rows) == len(before):
            # also the way out of a half-written cache: nothing has to be copied
            self._cache.clear()
            self._running = []
        elif rows:
            try:
                self._running = [before[row] for row in self._cache.leave(rows)]
            except Exception as error:
                self._lose_neighbours(sequences, error)
        # in this order, so that nobody reads more used than reserved in between
        self._note_held()
        self._release(sequences)

    def _lose_neighbours(self, leaving: list[Sequence], error: Exception) -> None:
        """Re-packing failed and left the batch half copied: those who stayed are lost too."""
        lost = [sequence for sequence in self._running if sequence not in leaving]
        log_failure(error, f"re-packing the batch failed; {len(lost)} request(s) end with an error")
        self._cache.clear()
        self._running = []
        self._note_held()
        self._release(lost)
        self._report.failed(lost, failure("the batch could not be re-packed", error))

    def _is_active(self, sequence: Sequence) -> bool:
        return sequence is self._prefilling or sequence in self._running

    def _note_held(self) -> None:
        cache = self._cache
        self.held = Held(
            cache.used_bytes(), cache.tokens_held(), cache.padding_bytes(), part_bytes(cache)
        )
