"""Mode *paced*: each answer's tokens come at times drawn from two distributions.

A chunk is due at the time the one before was due, plus a gap: a late write delays nothing
that follows. The draws of a request depend on the seed and its number alone.
"""

from __future__ import annotations

import asyncio
import gc
import random
from array import array
from collections.abc import Callable, Mapping

from servers.simulated.reply import Reply
from servers.simulated.requests import Job
from servers.simulated.settings import Pace
from servers.simulated.wheel import Wheel

#: objects of this many answers are left to the collector until nothing is due
_COLLECT_EVERY = 2000


class _Paced:
    """One answer with its deadlines."""

    __slots__ = ("_chunk", "_counts", "_due", "_due_s", "_gap")

    def __init__(self, reply: Reply, due_s: float, gap: Callable[[], float], counts: _Counts):
        self._chunk = reply.chunk
        # an answer that is not streamed is written once
        self._due = reply.entry.t_due_s if reply.streams else array("d")
        self._due_s, self._gap, self._counts = due_s, gap, counts

    def fire(self) -> float | None:
        """Send the chunk that is due."""
        due_s = self._due_s
        self._due.append(due_s)
        if not self._chunk():
            self._counts.ended()
            return None
        self._due_s = due_s = due_s + self._gap()
        return due_s


class _Counts:
    """What the metrics page states."""

    def __init__(self) -> None:
        self.running = 0
        self.requests = 0

    def ended(self) -> None:
        """A request is over."""
        self.running -= 1
        self.requests += 1


class PacedEngine:
    """Mode *paced*."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace: Pace, seed: int) -> None:
        self._pace, self._seed = pace, seed
        self._wheel = Wheel(loop, self._idle)
        self._counts = _Counts()
        self._since_collection = 0
        constant_s = pace.itl.constant_s
        self._constant_gap = None if constant_s is None else (lambda: constant_s)

    def check(self, job: Job) -> None:
        """Everything can be served."""

    def sizes(self, job: Job, number: int) -> list[int]:
        """Drawn from the pace; a uniform range needs random numbers."""
        rng = self._rng(number, "sizes") if self._pace.sizes.span is not None else None
        return self._pace.sizes.split(job.max_tokens, rng)

    def serve(self, reply: Reply, job: Job, number: int) -> None:
        """First tokens after a drawn TTFT, the others after drawn gaps."""
        pace, rng = self._pace, None
        ttft_s = pace.ttft.constant_s
        if ttft_s is None:
            ttft_s = pace.ttft.sampler(self._rng(number, "ttft"))()
        gap = self._constant_gap
        if gap is None:
            rng = self._rng(number, "itl")
            gap = pace.itl.sampler(rng)
        due_s = reply.entry.t_received_s + ttft_s
        self._counts.running += 1
        self._since_collection += 1
        self._wheel.add(due_s, _Paced(reply, due_s, gap, self._counts))

    def metrics(self) -> str:
        """Two figures, under names of its own."""
        return (
            "# TYPE simulated_requests_running gauge\n"
            f"simulated_requests_running {self._counts.running}\n"
            "# TYPE simulated_requests_total counter\n"
            f"simulated_requests_total {self._counts.requests}\n"
        )

    def version(self) -> Mapping[str, object]:
        """The distributions, as they were given."""
        pace = self._pace
        return {
            "mode": "paced",
            "ttft": pace.ttft.text,
            "itl": pace.itl.text,
            "tokens_per_chunk": pace.sizes.text,
        }

    def close(self) -> None:
        """Nothing is due any more."""
        self._wheel.close()

    def _idle(self) -> None:
        """A collection of garbage would make tokens late: it waits until none is due."""
        if self._since_collection >= _COLLECT_EVERY:
            self._since_collection = 0
            gc.collect()

    def _rng(self, number: int, what: str) -> random.Random:
        return random.Random(f"{self._seed}/{what}/{number}")  # noqa: S311 - not for secrets
