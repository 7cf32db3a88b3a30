"""How much KV memory requests are given, by policy: what is reserved, who gets in, who grows.

The policies are told in ``harness.kv.occupancy``, which runs requests against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from harness.kv.layouts import next_power_of_two

Policy = Literal["max", "pow2", "exact", "padded", "paged"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class Lengths(NamedTuple):
    """One request."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Pool:
    """The memory, in tokens and blocks, and the engine's other limits."""

    tokens: int
    max_model_len: int
    max_num_seqs: int | None = None
    #: paged: tokens of a block
    block_size: int = 16
    #: paged: blocks that no request gets (vLLM's null block)
    lost_blocks: int = 1

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can get."""
        return max(0, self.tokens // self.block_size - self.lost_blocks)


@dataclass(eq=False)
class Request:
    """A request and what it has."""

    lengths: Lengths
    received: int = 0
    #: token slots, or blocks, that it has now
    taken: int = 0

    @property
    def stored(self) -> int:
        """Tokens whose K and V are in the cache."""
        return self.lengths.prompt_tokens + max(0, self.received - 1)


class Ledger(Protocol):
    """What a policy has given away."""

    def can_ever(self, request: Lengths) -> bool:
        """Whether a request could run if it were alone."""
        ...

    def admit(self, request: Request) -> bool:
        """Reserve for a request that starts; False when it must wait."""
        ...

    def grow(self, request: Request) -> bool:
        """Make room for all that it stores now; False when there is none."""
        ...

    def release(self, request: Request) -> None:
        """It is gone."""
        ...

    @property
    def reserved(self) -> int:
        """Token slots set aside."""
        ...


def promised(policy: Policy, request: Lengths, max_model_len: int) -> int:
    """Token slots that a contiguous policy reserves for one request."""
    tokens = sum(request)
    if policy == "max":
        return max_model_len
    if policy == "pow2":
        return min(next_power_of_two(tokens), max_model_len)
    return tokens


class _Slots:
    """max, pow2, exact: a promise per request, kept from its start to its end."""

    def __init__(self, policy: Policy, pool: Pool) -> None:
        self._policy = policy
        self._pool = pool
        self.reserved = 0

    def can_ever(self, request: Lengths) -> bool:
        slots = promised(self._policy, request, self._pool.max_model_len)
        return _fits(request, self._pool) and slots <= self._pool.tokens

    def admit(self, request: Request) -> bool:
        slots = promised(self._policy, request.lengths, self._pool.max_model_len)
        if self.reserved + slots > self._pool.tokens:
            return False
        request.taken = slots
        self.reserved += slots
        return True

    def grow(self, request: Request) -> bool:
        return True

    def release(self, request: Request) -> None:
        self.reserved -= request.taken
        request.taken = 0


class _Padded:
    """One batch as wide as its longest promise."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._promises: list[int] = []

    @property
    def reserved(self) -> int:
        return len(self._promises) * max(self._promises, default=0)

    def can_ever(self, request: Lengths) -> bool:
        return _fits(request, self._pool) and sum(request) <= self._pool.tokens

    def admit(self, request: Request) -> bool:
        self._promises.append(sum(request.lengths))
        if self.reserved <= self._pool.tokens:
            return True
        self._promises.pop()
        return False

    def grow(self, request: Request) -> bool:
        return True

    def release(self, request: Request) -> None:
        self._promises.remove(sum(request.lengths))


class _Blocks:
    """paged: blocks for what is stored."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._taken = 0

    @property
    def reserved(self) -> int:
        return self._taken * self._pool.block_size

    def can_ever(self, request: Lengths) -> bool:
        blocks = self._blocks(sum(request) - 1)
        return _fits(request, self._pool) and blocks <= self._pool.usable_blocks

    def admit(self, request: Request) -> bool:
        return self.grow(request)

    def grow(self, request: Request) -> bool:
        more = self._blocks(request.stored) - request.taken
        if self._taken + more > self._pool.usable_blocks:
            return False
        request.taken += more
        self._taken += more
        return True

    def release(self, request: Request) -> None:
        self._taken -= request.taken
        request.taken = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._pool.block_size)


def ledger_of(policy: Policy, pool: Pool) -> Ledger:
    """An empty ledger of a policy."""
    if policy == "paged":
        return _Blocks(pool)
    return _Padded(pool) if policy == "padded" else _Slots(policy, pool)


def _fits(request: Lengths, pool: Pool) -> bool:
    return sum(request) <= pool.max_model_len
