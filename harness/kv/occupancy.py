"""What a pool of KV memory holds under load, by simulation: the prediction beside a measurement.

A backlog without end, first come first served, none overtaking. At every step the requests
at its head are admitted as long as their reservation fits; then each running request gets a
token, and those that have got their last one leave. All steps weigh the same. A prompt is
stored when its request is admitted. With p prompt tokens and k tokens received, p + k - 1
are stored: the K and V of the newest token are not written before it is used.

max     reserves the longest context of the server for each request
pow2    prompt + answer, rounded up to a power of two, at most that longest context
exact   prompt + answer, as if the server knew the answer's length ("oracle")
padded  requests x the longest of their prompt + answer: one batch, concatenated and padded
paged   blocks as tokens come; where none is left, the youngest request gives up its own, and
        has its tokens computed anew when it gets in again (vLLM V1)

Regions of the first three lie where the first free piece is long enough, and do not move, as
in the contiguous server: free memory in pieces that are too short is of no use (external
fragmentation). They are the reservation policies of Kwon et al., "Efficient Memory Management for
Large Language Model Serving with PagedAttention" (SOSP 2023), section 6.1 and figure 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from harness.kv.reserving import (
    POLICIES,
    Ledger,
    Lengths,
    Policy,
    Pool,
    Request,
    ledger_of,
)

__all__ = ["POLICIES", "Lengths", "Occupancy", "Policy", "Pool", "simulate"]

#: So many batches leave before the averages begin: the first one's requests are in step.
_WARM_BATCHES = 2
#: Steps that are averaged at most.
_MOST_STEPS = 200_000


@dataclass(frozen=True)
class Occupancy:
    """Means over the steps of a simulation."""

    #: requests running
    held: float
    #: tokens stored, and token slots reserved for them
    stored_tokens: float
    reserved_tokens: float
    #: tokens stored / token slots of the whole pool
    pool_share: float
    steps: int
    #: requests that left within these steps
    finished: int
    preemptions: int

    @property
    def share(self) -> float | None:
        """Stored / reserved; None where nothing was ever reserved."""
        return self.stored_tokens / self.reserved_tokens if self.reserved_tokens else None


def simulate(
    policy: Policy, requests: Sequence[Lengths], pool: Pool, users: int | None = None
) -> Occupancy | None:
    """Run the requests, over and over, until as many have left as there are.

    ``users``: no more run at once, as in a closed loop of so many; None: the backlog never
    ends. None is returned where a request could never run, or there is none.
    """
    ledger = ledger_of(policy, pool)
    if not requests or not all(map(ledger.can_ever, requests)):
        return None
    most = min((n for n in (users, pool.max_num_seqs) if n is not None), default=None)
    return _Simulation(ledger, requests, pool, most).run()


class _Simulation:
    def __init__(
        self, ledger: Ledger, requests: Sequence[Lengths], pool: Pool, most: int | None
    ) -> None:
        self._ledger = ledger
        self._pool = pool
        self._most = most
        self._count = len(requests)
        self._backlog = cycle(requests)
        #: the head of the queue; preempted requests stand before it
        self._waiting = deque([Request(next(self._backlog))])
        self._running: list[Request] = []
        self._left = 0
        self._preemptions = 0

    def run(self) -> Occupancy:
        """Warm up, then average until as many requests have left as there are."""
        while self._left < _WARM_BATCHES * max(1, len(self._running)):
            self._step()
            self._leave()
        left, preempted = self._left, self._preemptions
        held = stored = reserved = steps = 0
        while self._left - left < self._count and steps < _MOST_STEPS:
            self._step()
            held += len(self._running)
            stored += sum(request.stored for request in self._running)
            reserved += self._ledger.reserved
            steps += 1
            self._leave()
        return Occupancy(
            held=held / steps,
            stored_tokens=stored / steps,
            reserved_tokens=reserved / steps,
            pool_share=stored / steps / self._pool.tokens,
            steps=steps,
            finished=self._left - left,
            preemptions=self._preemptions - preempted,
        )

    def _step(self) -> None:
        while self._most is None or len(self._running) < self._most:
            if not self._ledger.admit(self._waiting[0]):
                break
            self._running.append(self._waiting.popleft())
            if not self._waiting:
                self._waiting.append(Request(next(self._backlog)))
        self._grow()

    def _grow(self) -> None:
        """Every running request gets a token; the youngest make room where blocks run out."""
        index = 0
        while index < len(self._running):
            request = self._running[index]
            request.received += 1
            while not self._ledger.grow(request):
                youngest = self._running.pop()
                self._ledger.release(youngest)
                self._waiting.appendleft(youngest)
                self._preemptions += 1
                if youngest is request:
                    request.received -= 1
                    break
            index += 1

    def _leave(self) -> None:
        staying = []
        for request in self._running:
            if request.received < request.lengths.output_tokens:
                staying.append(request)
            else:
                self._ledger.release(request)
        self._left += len(self._running) - len(staying)
        self._running = staying
