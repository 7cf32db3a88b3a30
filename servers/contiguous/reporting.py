"""What becomes of a chosen token: an event for its client and figures for the metrics.

Used on the engine's thread only, by whatever decides which rows run together.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

import torch

from servers.contiguous.metrics import RequestMetrics
from servers.contiguous.sampling import choose_tokens
from servers.contiguous.sequence import ErrorEvent, Event, Sequence

logger = logging.getLogger(__name__)

#: hands events over to whoever sends them; called on the engine thread, several at a time
Deliver = Callable[[list[tuple[Sequence, Event]]], None]


class Reporter:
    """Tells clients and metrics what happens to requests."""

    def __init__(
        self, metrics: RequestMetrics, deliver: Deliver, clock: Callable[[], float]
    ) -> None:
        self.metrics = metrics
        self._deliver = deliver
        self._clock = clock

    def admitted(self, sequence: Sequence) -> None:
        """It may start now."""
        sequence.admitted_s = self._clock()

    def choose(self, sequences: Seq[Sequence], logits: torch.Tensor) -> dict[Sequence, str]:
        """A token for each from ``[sequences, vocab]`` logits, sent at once.

        Returns those that have ended, with how.
        """
        samplers = [sequence.sampler for sequence in sequences]
        tokens = choose_tokens(logits, samplers, [sequence.generated for sequence in sequences])
        now = self._clock()
        finished: dict[Sequence, str] = {}
        events: list[tuple[Sequence, Event]] = []
        for sequence, token in zip(sequences, tokens, strict=True):
            event = sequence.accept(token)
            events.append((sequence, event))
            self._measure(sequence, now)
            if event.finish_reason is not None:
                finished[sequence] = event.finish_reason
        self.metrics.generation_tokens.inc(len(tokens))
        self._deliver(events)
        return finished

    def ended(self, outcomes: Mapping[Sequence, str]) -> None:
        """Count requests that end without an error."""
        for sequence, outcome in outcomes.items():
            self.metrics.ended(outcome)
            if sequence.first_token_s is not None and sequence.last_token_s is not None:
                self.metrics.decode_s.observe(sequence.last_token_s - sequence.first_token_s)

    def failed(self, sequences: Seq[Sequence], event: ErrorEvent) -> None:
        """End requests with an error event."""
        for _ in sequences:
            self.metrics.ended("error")
        if sequences:
            self._deliver([(sequence, event) for sequence in sequences])

    def _measure(self, sequence: Sequence, now_s: float) -> None:
        metrics = self.metrics
        if sequence.last_token_s is None:
            submitted_s, admitted_s = sequence.submitted_s or now_s, sequence.admitted_s or now_s
            sequence.first_token_s = now_s
            metrics.queue_s.observe(admitted_s - submitted_s)
            metrics.prefill_s.observe(now_s - admitted_s)
            metrics.ttft_s.observe(now_s - submitted_s)
        else:
            metrics.gap_s.observe(now_s - sequence.last_token_s)
        sequence.last_token_s = now_s


def failure(doing: str, error: Exception) -> ErrorEvent:
    """Its type and text, short enough for a stream's last frame."""
    text = str(error).split("\n", 1)[0][:300]
    return ErrorEvent(f"{doing}: {type(error).__name__}: {text}")


def log_failure(error: Exception, message: str) -> None:
    """With its traceback, as text: a log record that holds the exception holds its tensors."""
    logger.error("%s\n%s", message, "".join(traceback.format_exception(error)))


def give_memory_back(error: Exception) -> None:
    """After running out of device memory, so that the next request finds what there is."""
    if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available():
        torch.cuda.empty_cache()
