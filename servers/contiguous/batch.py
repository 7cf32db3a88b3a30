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

import logging
import traceback
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

import torch

from servers.contiguous.cache import Held, Rows, part_bytes
from servers.contiguous.sampling import choose_tokens
from servers.contiguous.sequence import ErrorEvent, Event, Sequence

if TYPE_CHECKING:
    # for its type alone: the engine runs without Prometheus' client, as on a bare GPU machine
    from servers.contiguous.metrics import RequestMetrics

logger = logging.getLogger(__name__)

#: hands events over to whoever sends them; called on the engine thread, several at a time
Deliver = Callable[[list[tuple[Sequence, Event]]], None]


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
        metrics: RequestMetrics,
        *,
        deliver: Deliver,
        clock: Callable[[], float],
        prefill_chunk: int,
        admit: Callable[[], Sequence | None],
        release: Callable[[Iterable[Sequence]], None],
    ) -> None:
        self._runner = runner
        self._cache = runner.cache
        self._metrics = metrics
        self._deliver = deliver
        self._clock = clock
        self._prefill_chunk = prefill_chunk
        self._admit = admit
        self._release = release
        self._prefilling: Sequence | None = None
        #: in the order of the cache's decoding rows
        self._running: list[Sequence] = []
        self._outbox: list[tuple[Sequence, Event]] = []
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
        self._fail(running + waiting, event)

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
                self._prefill(sequence, chunk)
            except Exception as error:
                self._failed([sequence], "prefilling", error)
        return left < self._prefill_chunk

    def _begin(self) -> Sequence | None:
        sequence = self._prefilling = self._admit()
        if sequence is not None:
            sequence.admitted_s = self._clock()
        return sequence

    def _prefill(self, sequence: Sequence, chunk: list[int]) -> None:
        if sequence.prefilled == 0:
            self._cache.start_prefill(sequence.kv_start)
        logits = self._runner.prefill(chunk)
        sequence.prefilled += len(chunk)
        self._metrics.prompt_tokens.inc(len(chunk))
        if sequence.prefilled == len(sequence.prompt_ids):
            self._cache.join()
            self._prefilling = None
            self._running.append(sequence)
            self._emit([sequence], logits)
        self._note_held()

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
        samplers = [sequence.sampler for sequence in sequences]
        tokens = choose_tokens(logits, samplers, [sequence.generated for sequence in sequences])
        now = self._clock()
        finished: dict[Sequence, str] = {}
        for sequence, token in zip(sequences, tokens, strict=True):
            event = sequence.accept(token)
            self._outbox.append((sequence, event))
            self._measure(sequence, now)
            if event.finish_reason is not None:
                finished[sequence] = event.finish_reason
        self._metrics.generation_tokens.inc(len(tokens))
        self._flush()
        if finished:
            self._end(finished)

    def _measure(self, sequence: Sequence, now_s: float) -> None:
        if sequence.last_token_s is None:
            submitted_s, admitted_s = sequence.submitted_s or now_s, sequence.admitted_s or now_s
            sequence.first_token_s = now_s
            self._metrics.queue_s.observe(admitted_s - submitted_s)
            self._metrics.prefill_s.observe(now_s - admitted_s)
            self._metrics.ttft_s.observe(now_s - submitted_s)
        else:
            self._metrics.gap_s.observe(now_s - sequence.last_token_s)
        sequence.last_token_s = now_s

    # ---- endings

    def _end(self, outcomes: dict[Sequence, str]) -> None:
        """Free what they hold and count them."""
        self._drop(list(outcomes))
        for sequence, outcome in outcomes.items():
            self._metrics.ended(outcome)
            if sequence.first_token_s is not None and sequence.last_token_s is not None:
                self._metrics.decode_s.observe(sequence.last_token_s - sequence.first_token_s)

    def _failed(self, sequences: list[Sequence], doing: str, error: Exception) -> None:
        """End what a failed forward touched; the cache may be half written, so rows go whole."""
        _log(error, f"{doing} failed; {len(sequences)} request(s) end with an error")
        lost = [sequence for sequence in sequences if self._is_active(sequence)]
        self._drop(lost)
        self._fail(lost, ErrorEvent(f"{doing} failed: {_first_line(error)}"))
        if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available():
            torch.cuda.empty_cache()

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
        _log(error, f"re-packing the batch failed; {len(lost)} request(s) end with an error")
        self._cache.clear()
        self._running = []
        self._note_held()
        self._release(lost)
        self._fail(lost, ErrorEvent(f"the batch could not be re-packed: {_first_line(error)}"))

    def _fail(self, sequences: list[Sequence], event: ErrorEvent) -> None:
        for sequence in sequences:
            self._metrics.ended("error")
            self._outbox.append((sequence, event))
        self._flush()

    def _is_active(self, sequence: Sequence) -> bool:
        return sequence is self._prefilling or sequence in self._running

    def _note_held(self) -> None:
        cache = self._cache
        self.held = Held(
            cache.used_bytes(), cache.tokens_held(), cache.padding_bytes(), part_bytes(cache)
        )

    def _flush(self) -> None:
        if self._outbox:
            batch, self._outbox = self._outbox, []
            self._deliver(batch)


def _first_line(error: Exception) -> str:
    """Its type and text, short enough for a stream's last frame."""
    text = str(error).split("\n", 1)[0][:300]
    return f"{type(error).__name__}: {text}"


def _log(error: Exception, message: str) -> None:
    # as text: a log record that holds the exception holds its frames, and they the tensors
    logger.error("%s\n%s", message, "".join(traceback.format_exception(error)))
