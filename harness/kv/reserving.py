"""How much KV memory requests are given, by policy: what is reserved, who gets in, who grows.

The policies are told in ``harness.kv.occupancy``, which runs requests against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from harness.kv.reserve import Reserve, reserved_tokens

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
    #: paged: blocks that it has now
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


class _Regions:
    """max, pow2, exact: a region per request, the first free piece that is long enough.

    It does not move while its request runs, so free tokens may lie in pieces that are too
    short: external fragmentation.
    """

    def __init__(self, policy: Reserve, pool: Pool) -> None:
        self._policy = policy
        self._pool = pool
        #: (first token, length, whose), by address
        self._regions: list[tuple[int, int, Request]] = []

    @property
    def reserved(self) -> int:
        return sum(length for _, length, _ in self._regions)

    def can_ever(self, request: Lengths) -> bool:
        return _fits(request, self._pool) and self._needed(request) <= self._pool.tokens

    def admit(self, request: Request) -> bool:
        needed = self._needed(request.lengths)
        at = 0
        for place, (start, length, _) in enumerate(self._regions):
            if start - at >= needed:
                self._regions.insert(place, (at, needed, request))
                return True
            at = start + length
        if self._pool.tokens - at < needed:
            return False
        self._regions.append((at, needed, request))
        return True

    def grow(self, request: Request) -> bool:
        return True

    def release(self, request: Request) -> None:
        self._regions = [region for region in self._regions if region[2] is not request]

    def _needed(self, request: Lengths) -> int:
        return reserved_tokens(self._policy, sum(request), self._pool.max_model_len)


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
    return _Padded(pool) if policy == "padded" else _Regions(policy, pool)


def _fits(request: Lengths, pool: Pool) -> bool:
    return sum(request) <= pool.max_model_len
