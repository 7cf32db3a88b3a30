"""Admission of the cache policies ``off``, ``sliding`` and ``quantized``. Pure, no torch.

All count what the running requests can come to hold at most, so that what is used never
exceeds what is reserved; a request is admitted when that, with it counted in, fits the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servers.contiguous.admission import Blocker, Promise, WithinBudget, WithoutRegions
from servers.contiguous.quantized_size import QuantizedSize


@dataclass(frozen=True)
class OffPolicy(WithoutRegions):
    """No KV cache, so no KV budget: only the number of requests is bounded."""

    max_num_seqs: int

    def blocker(self, running: Sequence[Promise], promise: Promise) -> Blocker | None:
        """A free seat is all that is needed."""
        return "seqs" if len(running) >= self.max_num_seqs else None

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """Nothing."""
        return 0

    def refusal(self, promise: Promise) -> str | None:
        """Never."""
        return None


@dataclass(frozen=True)
class SlidingPolicy(WithinBudget):
    """A padded batch whose rows stop growing at the window."""

    budget_bytes: int
    #: KV bytes of one row of so many tokens (``KvLayout.bytes_kept``)
    row_bytes: Callable[[int], int]
    max_num_seqs: int

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """Requests x what the longest promise can keep: padding is memory too."""
        longest = max((promise.tokens for promise in running), default=0)
        return len(running) * self.row_bytes(longest)

    def refusal(self, promise: Promise) -> str | None:
        """A request that alone keeps more than the whole budget."""
        need = self.row_bytes(promise.tokens)
        return _refusal(promise, need, self.budget_bytes, "that its windows keep")


@dataclass(frozen=True)
class QuantizedPolicy(WithinBudget):
    """Each request on its own, and room to prefill one of them at full precision."""

    budget_bytes: int
    size: QuantizedSize
    max_num_seqs: int

    def reserved_bytes(self, running: Sequence[Promise]) -> int:
        """Sum of the most that each can hold in the batch, and the costliest prefill's surplus.

        One request at a time is prefilled, and its prompt is quantized only when it is whole.
        """
        held = sum(self._most(promise) for promise in running)
        surplus = (
            promise.prompt_tokens * self.size.full_bytes - self._most(promise)
            for promise in running
        )
        return held + max(0, *surplus, 0)

    def refusal(self, promise: Promise) -> str | None:
        """A request that alone needs more than the whole budget."""
        need = self.reserved_bytes([promise])
        return _refusal(promise, need, self.budget_bytes, "while its prompt is computed")

    def _most(self, promise: Promise) -> int:
        return self.size.most(promise.prompt_tokens, promise.output_tokens)


def _refusal(promise: Promise, need: int, budget: int, which: str) -> str | None:
    if need <= budget:
        return None
    return (
        f"prompt + max_tokens is {promise.tokens} tokens: {need} B of KV {which}, more than the "
        f"whole KV budget of {budget} B; shorten the prompt or lower max_tokens"
    )
