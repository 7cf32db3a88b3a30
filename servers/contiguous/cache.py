"""What the engine asks of a KV cache, whatever its policy.

The cache holds a batch of *decoding* rows and at most one *prefilling* request beside it.
A forward is prepared (``prefill_args``, ``decode_args``), run by the caller, and then
confirmed (``prefilled``, ``decoded``), so that lengths never run ahead of what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from transformers.cache_utils import Cache


@dataclass(frozen=True)
class ForwardArgs:
    """What the model's forward gets beside the token ids.

    ``position_ids`` is ``[batch, tokens]``; ``attention_mask`` is None where the causal
    rule alone is right, else a bool ``[batch, 1, 1, cached tokens]`` (True: attend).
    """

    past_key_values: Cache
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | None


class BatchCache(Protocol):
    """A contiguous KV cache of a batch that requests join and leave."""

    def start_prefill(self, start: int = 0) -> None:
        """Make room for one more request, beside the decoding rows.

        ``start`` is the first token of its region; caches without regions ignore it.
        """
        ...

    def prefill_args(self, tokens: int) -> ForwardArgs:
        """For the next ``tokens`` prompt tokens of the prefilling request."""
        ...

    def prefilled(self, tokens: int) -> None:
        """They are stored."""
        ...

    def drop_prefill(self) -> None:
        """Free the prefilling request's memory; does nothing when there is none."""
        ...

    def join(self) -> None:
        """The prefilled request becomes the last decoding row."""
        ...

    def decode_args(self) -> ForwardArgs:
        """For one more token in every decoding row."""
        ...

    def decoded(self) -> None:
        """They are stored."""
        ...

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Take rows out; returns, for each row of the new batch, its old index."""
        ...

    def clear(self) -> None:
        """Take all decoding rows out; cannot fail, whatever state they are in."""
        ...

    def used_bytes(self) -> int:
        """Bytes of the storages that hold the rows in use, padding included."""
        ...

    def tokens_held(self) -> int:
        """Tokens stored, padding excluded."""
        ...

    def padding_bytes(self) -> int:
        """Of the bytes used, those of columns that only fill rows up to a common length."""
        ...


class Held(NamedTuple):
    """What a cache holds after its last change, for other threads to read."""

    used_bytes: int
    tokens: int
    padding_bytes: int
