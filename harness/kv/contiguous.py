"""Bytes of a contiguous cache's batch: what its policy sets aside, and what its storages take.

``static`` sets a slot of max_model_len aside for every occupied row and stores whole
slots. ``dynamic`` stores a batch padded to its longest row and sets aside what that can
grow to: every row as long as the longest promise (prompt + max_tokens).
"""

from __future__ import annotations

from collections.abc import Sequence


def static_bytes(rows: int, max_model_len: int, bytes_per_token: int) -> int:
    """Reserved and used alike: whole slots of the occupied rows."""
    return rows * max_model_len * bytes_per_token


def dynamic_reserved_bytes(promises: Sequence[int], bytes_per_token: int) -> int:
    """Running requests x longest promise, as admission charges them."""
    return len(promises) * max(promises, default=0) * bytes_per_token


def dynamic_used_bytes(lengths: Sequence[int], bytes_per_token: int) -> int:
    """Storages of the batch: every row as long as the longest."""
    return len(lengths) * max(lengths, default=0) * bytes_per_token
