"""What the contiguous server sets aside of a preallocated cache for one request."""

from __future__ import annotations

from typing import Literal

Reserve = Literal["exact", "pow2", "max"]


def next_power_of_two(tokens: int) -> int:
    """The smallest power of two that is at least ``tokens``."""
    return 1 << max(0, tokens - 1).bit_length()


def reserved_tokens(reserve: Reserve, tokens: int, max_model_len: int) -> int:
    """Tokens set aside for one request of ``tokens`` tokens, prompt and output.

    A request beyond ``max_model_len`` is refused; the figure still shows what it needs.
    """
    if reserve == "exact":
        return tokens
    if reserve == "pow2":
        return min(next_power_of_two(tokens), max(tokens, max_model_len))
    return max(tokens, max_model_len)
