"""Who may start, and who waits: first come first served within a KV budget. Pure, no torch.

``static`` sets aside a slot of ``max_model_len`` tokens. ``dynamic`` sets aside prompt +
max_tokens, and holds against the budget what the batch can grow to: requests x the longest
promise, since padding is memory too. That is the sum of the promises where all are equal,
and more where they are not. ``servers.contiguous.reserving`` has the policies that
reserve shorter regions, and whole batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Protocol, TypeVar

from servers.contiguous.errors import QueueFullError

#: ``seqs``: --max-num-seqs is reached; ``kv``: the KV budget is; ``region``: the budget
#: has the bytes, but in no contiguous piece
Blocker = Literal["seqs", "kv", "region"]

#: seconds that a refused client is asked to wait; a guess at a few requests' length
RETRY_AFTER_S = 1


@dataclass(frozen=True)
class Promise:
    """The most that a request can come to hold."""

    prompt_tokens: int
    #: max_tokens
    output_tokens: int
    #: first token of its region, once it runs; 0 where a policy has no regions
    start: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class FreeSpace:
    """What of an arena no region covers, in bytes."""

    total_bytes: int
    #: the longest contiguous piece
    largest_bytes: int


class AdmissionPolicy(Protocol):
    """Decides on the promises of the running requests and of the next one."""

    def blocker(self, running: Sequence[Promise], promise: Promise) -> Blocker | None:
        """What keeps the next request out, or None when it may start."""
        ...

    def start(self, running: Sequence[Promise], promise: Promise) -> int:
        """Where the region of one that may start begins; 0 without regions."""
        ...

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """KV bytes set aside for the running requests."""
        ...

    def free_space(self, running: Sequence[Promise]) -> FreeSpace | None:
        """What is left of an arena; None without regions."""
        ...

    def refusal(self, promise: Promise) -> str | None:
        """Why a request could never start, with the arithmetic; None when it could."""
        ...


class WithoutRegions:
    """The part of a policy that only counts: it does not matter where a request lies."""

    def start(self, running: Sequence[Promise], promise: Promise) -> int:
        """Nowhere in particular."""
        return 0

    def free_space(self, running: Sequence[Promise]) -> FreeSpace | None:
        """There is no arena."""
        return None


@dataclass(frozen=True)
class StaticPolicy(WithoutRegions):
    """Slots of ``max_model_len`` tokens each; ``kv_slots`` of them fit the budget."""

    kv_slots: int
    max_num_seqs: int
    slot_bytes: int

    @property
    def slots(self) -> int:
        """Slots that exist: what the budget holds, capped by max_num_seqs."""
        return min(self.kv_slots, self.max_num_seqs)

    def blocker(self, running: Sequence[Promise], promise: Promise) -> Blocker | None:
        """A free slot is all that is needed."""
        if len(running) >= self.max_num_seqs:
            return "seqs"
        return "kv" if len(running) >= self.kv_slots else None

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """Occupied slots x bytes of a slot, however few tokens they hold."""
        return len(running) * self.slot_bytes

    def refusal(self, promise: Promise) -> str | None:
        """Never: whatever fits the context fits a slot."""
        return None


class WithinBudget(WithoutRegions, ABC):
    """A request is admitted when what would be reserved with it fits the budget."""

    budget_bytes: int
    max_num_seqs: int

    @abstractmethod
    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """The most that they can come to hold."""

    def blocker(self, running: Sequence[Promise], promise: Promise) -> Blocker | None:
        """What would be reserved with the next request counted in."""
        if len(running) >= self.max_num_seqs:
            return "seqs"
        return "kv" if self.reserved_bytes([*running, promise]) > self.budget_bytes else None


@dataclass(frozen=True)
class DynamicPolicy(WithinBudget):
    """Promised tokens, padded to the longest promise, within ``budget_bytes``."""

    budget_bytes: int
    bytes_per_token: int
    max_num_seqs: int

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """Requests x longest promise: the most that their padded batch can come to hold."""
        longest = max((promise.tokens for promise in running), default=0)
        return len(running) * longest * self.bytes_per_token

    def refusal(self, promise: Promise) -> str | None:
        """A promise above the whole budget."""
        return over_budget(promise.tokens, self.budget_bytes, self.bytes_per_token)


def over_budget(tokens: int, budget_bytes: int, bytes_per_token: int) -> str | None:
    """Says that a request needs more than the whole budget; None when it does not."""
    need = tokens * bytes_per_token
    if need <= budget_bytes:
        return None
    return (
        f"prompt + max_tokens is {tokens} tokens x {bytes_per_token} B of KV = {need} B, "
        f"more than the whole KV budget of {budget_bytes} B "
        f"({budget_bytes // bytes_per_token} tokens); shorten the prompt or lower max_tokens"
    )


T = TypeVar("T")


class Admission(Generic[T]):
    """The queue and the running set. Not thread-safe: its owner holds a lock."""

    def __init__(self, policy: AdmissionPolicy, max_waiting: int) -> None:
        self.policy = policy
        self.max_waiting = max_waiting
        self._waiting: deque[tuple[T, Promise]] = deque()
        self._running: dict[T, Promise] = {}
        #: of requests that have ended and whose memory is not free yet
        self._kept: list[Promise] = []

    def enqueue(self, item: T, promise: Promise) -> None:
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
        held = self._held
        if self.policy.blocker(held, promise) is not None:
            return None
        self._waiting.popleft()
        self._running[item] = replace(promise, start=self.policy.start(held, promise))
        return item

    def start_of(self, item: T) -> int:
        """First token of a running request's region."""
        return self._running[item].start

    def release(self, item: T) -> None:
        """A running request has ended, whatever the reason."""
        del self._running[item]

    def keep(self, item: T) -> None:
        """A running request has ended, but its memory stays taken until ``release_kept``."""
        self._kept.append(self._running.pop(item))

    def release_kept(self) -> None:
        """What ended requests still took is free."""
        self._kept.clear()

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
        return count if blocker in ("kv", "region") else 0

    @property
    def waiting_for_region(self) -> int:
        """Those of them for which the free bytes would do if they lay in one piece."""
        count, blocker = self._kept_out()
        return count if blocker == "region" else 0

    @property
    def reserved_bytes(self) -> int:
        """What the policy has set aside for the requests that run, or ended and are kept."""
        return self.policy.reserved_bytes(self._held)

    @property
    def free_space(self) -> FreeSpace | None:
        """What no region covers; None where the policy has no regions."""
        return self.policy.free_space(self._held)

    @property
    def _held(self) -> list[Promise]:
        return [*self._running.values(), *self._kept]

    def _kept_out(self) -> tuple[int, Blocker | None]:
        """How many of the queue would wait even if turns were instant, and for what."""
        running = self._held
        for index, (_, promise) in enumerate(self._waiting):
            blocker = self.policy.blocker(running, promise)
            if blocker is not None:
                return len(self._waiting) - index, blocker
            running.append(replace(promise, start=self.policy.start(running, promise)))
        return 0, None
