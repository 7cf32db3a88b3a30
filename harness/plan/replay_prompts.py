"""Prompts of a replayed trace: any length, and shared prefixes where the trace has them. Pure.

A block id becomes one sequence of tokens, the same in every prompt of the run that starts
with it: its number and the run's nonce, then a seeded filling. So prompts share exactly
what the trace's prompts shared, and no earlier run has left a block in a cache.
"""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import chain

from harness.plan.prompts import TokenPrompts, digits
from harness.plan.traces import TraceRow

#: Nonces are 32 bits wide.
_NONCES = 2**32
#: Blocks kept ready: the ones that are shared come again soon.
_KEPT_BLOCKS = 4096


class ReplayPrompts:
    """Makes the prompt of each row, in the tokens of one backend."""

    def __init__(
        self, base: TokenPrompts, longest: int, block_tokens: int, repeat: int = 0
    ) -> None:
        """``base`` has the backend's tokens, seed and nonce; ``longest``: prompt tokens.

        ``repeat`` changes the nonce: a repeat must not hit what the one before has cached.
        """
        self._alphabet = base.alphabet
        nonce = base.nonce + repeat
        self._block_tokens = block_tokens
        draw = random.Random(base.seed)  # noqa: S311 - not for secrets
        once = tuple(draw.choices(self._alphabet, k=max(longest, block_tokens)))
        self._turns = len(once)
        #: twice, so that every turn of it is one slice
        self._filling = once * 2
        self._own_nonce = tuple(digits(nonce % _NONCES, self._alphabet))
        # a request and a block of one number must not look alike
        self._block_nonce = tuple(digits((nonce + _NONCES // 2) % _NONCES, self._alphabet))
        self._block = lru_cache(maxsize=_KEPT_BLOCKS)(self._make_block)

    def prompt(self, number: int, row: TraceRow) -> tuple[int, ...]:
        """The prompt of a row; ``number`` counts the requests of the run.

        Tokens behind the row's blocks are its own. So are the last ones of a prompt that
        was cut: what stood behind the cut told it from others.
        """
        length = row.prompt_tokens
        if not row.blocks:
            return self._tokens(number, self._own_nonce, length)
        needed = -(-length // self._block_tokens)
        shared = tuple(chain.from_iterable(map(self._block, row.blocks[:needed])))
        if needed < len(row.blocks):
            tail = tuple(digits(number, self._alphabet))
            return (shared[: max(0, length - len(tail))] + tail)[:length]
        return shared[:length] + self._tokens(number, self._own_nonce, max(0, length - len(shared)))

    def _tokens(self, number: int, nonce: tuple[int, ...], length: int) -> tuple[int, ...]:
        """So many tokens, the number first."""
        head = (*digits(number, self._alphabet), *nonce)
        turn = number % self._turns
        return (head + self._filling[turn + len(head) : turn + max(length, len(head))])[:length]

    def _make_block(self, block: int) -> tuple[int, ...]:
        return self._tokens(block, self._block_nonce, self._block_tokens)
