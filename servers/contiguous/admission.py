"""Who may start, and who waits: first come first served within a KV budget. Pure, no torch.

``static`` promises a slot of ``max_model_len`` tokens. ``dynamic`` promises prompt +
max_tokens, and holds against the budget what the batch can grow to: requests x the longest
promise, since padding is memory too. That is the sum of the promises where all are equal,
and more where they are not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from servers.contiguous.errors import QueueFullError

#: ``seqs``: --max-num-seqs is reached; ``kv``: the KV budget is
Blocker = Literal["seqs", "kv"]

#: seconds that a refused client is asked to wait; a guess at a few requests' length
RETRY_AFTER_S = 1


class AdmissionPolicy(Protocol):
    """Decides on promises (tokens) of the running requests and of the next one."""

    def blocker(self, running: Sequence[int], promise: int) -> Blocker | None:
        """What keeps the next request out, or None when it may start."""
        ...

    def reserved_bytes(self, running: Sequence[int]) -> int:
        """KV bytes set aside for the running requests."""
        ...

    def refusal(self, promise: int) -> str | None:
        """Why a request could never start, with the arithmetic; None when it could."""
        ...


@dataclass(frozen=True)
class StaticPolicy:
    """Slots of ``max_model_len`` tokens each; ``kv_slots`` of them fit the budget."""

    kv_slots: int
    max_num_seqs: int
    slot_bytes: int

    @property
    def slots(self) -> int:
        """Slots that exist: what the budget holds, capped by max_num_seqs."""
        return min(self.kv_slots, self.max_num_seqs)

    def blocker(self, running: Sequence[int], promise: int) -> Blocker | None:
        """A free slot is all that is needed."""
        if len(running) >= self.max_num_seqs:
            return "seqs"
        return "kv" if len(running) >= self.kv_slots else None

    def reserved_bytes(self, running: Sequence[int]) -> int:
        """Occupied slots x bytes of a slot, however few tokens they hold."""
        return len(running) * self.slot_bytes

    def refusal(self, promise: int) -> str | None:
        """Never: whatever fits the context fits a slot."""
        return None


@dataclass(frozen=True)
class DynamicPolicy:
    """Promised tokens, padded to the longest promise, within ``budget_bytes``."""

    budget_bytes: int
    bytes_per_token: int
    max_num_seqs: int

    def blocker(self, running: Sequence[int], promise: int) -> Blocker | None:
        """What would be reserved with the next request counted in."""
        if len(running) >= self.max_num_seqs:
            return "seqs"
        return "kv" if self.reserved_bytes([*running, promise]) > self.budget_bytes else None

    def reserved_bytes(self, running: Sequence[int]) -> int:
        """Requests x longest promise: the most that their padded batch can come to hold."""
        return len(running) * max(running, default=0) * self.bytes_per_token

    def refusal(self, promise: int) -> str | None:
        """A promise above the whole budget."""
        need = promise * self.bytes_per_token
        if need <= self.budget_bytes:
            return None
        return (
            f"prompt + max_tokens is {promise} tokens x {self.bytes_per_token} B of KV = {need} B, "
            f"more than the whole KV budget of {self.budget_bytes} B "
            f"({self.budget_bytes // self.bytes_per_token} tokens); shorten the prompt or "
            "lower max_tokens"
        )


T = TypeVar("T")


class Admission(Generic[T]):
    """The queue and the running set. Not thread-safe: its owner holds a lock."""

    def __init__(self, policy: AdmissionPolicy, max_waiting: int) -> None:
        self.policy = policy
        self.max_waiting = max_waiting
        self._waiting: deque[tuple[T, int]] = deque()
        self._running: dict[T, int] = {}

    def enqueue(self, item: T, promise: int) -> None:
        """Put a request last; raises QueueFullError.

        A request that only waits for its turn, because there is room for it, does not
        count against the bound: a burst on an idle server is not refused.
        """
        if len(self._waiting) >= self.max_waiting and self._kept_out()[0] >= self.max_waiting:
            raise QueueFullError(self.max_waiting, RETRY_AFTER_S)
        self._waiting.append((item, promise))

    def withdraw(self, item: T) -> bool:
        """Take a request out of the queue; False when it is not waiting."""
        for entry in self._waiting:
            if entry[0] is item:
                self._waiting.remove(entry)
                return True
        return False

    def admit(self) -> T | None:
        """Start the first of the queue if the policy lets it; nobody overtakes it."""
        if not self._waiting:
            return None
        item, promise = self._waiting[0]
        if self.policy.blocker(list(self._running.values()), promise) is not None:
            return None
        self._waiting.popleft()
        self._running[item] = promise
        return item

    def release(self, item: T) -> None:
        """A running request has ended, whatever the reason."""
        del self._running[item]

    def drain(self) -> list[T]:
        """Empty the queue and return who waited."""
        items = [item for item, _ in self._waiting]
        self._waiting.clear()
        return items

    @property
    def running(self) -> int:
        """Requests that were admitted and have not ended."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def waiting_for_kv(self) -> int:
        """Those of the queue that the KV budget keeps out: the blocked one and all behind it."""
        count, blocker = self._kept_out()
        return count if blocker == "kv" else 0

    @property
    def reserved_bytes(self) -> int:
        """What the policy has set aside for the running requests."""
        return self.policy.reserved_bytes(list(self._running.values()))

    def _kept_out(self) -> tuple[int, Blocker | None]:
        """How many of the queue would wait even if turns were instant, and for what."""
        running = list(self._running.values())
        for index, (_, promise) in enumerate(self._waiting):
            blocker = self.policy.blocker(running, promise)
            if blocker is not None:
                return len(self._waiting) - index, blocker
            running.append(promise)
        return 0, None
