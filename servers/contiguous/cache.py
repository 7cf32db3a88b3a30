"""What the engine asks of a KV cache, whatever its policy.

The cache holds a batch of *decoding* rows and at most one *prefilling* request beside it.
A forward is prepared (``prefill_args``, ``decode_args``), run by the caller, and then
confirmed (``prefilled``, ``decoded``), so that lengths never run ahead of what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from transformers.cache_utils import Cache


@dataclass(frozen=True)
class ForwardArgs:
    """What the model's forward gets beside the token ids.

    ``position_ids`` is ``[batch, tokens]``; ``attention_mask`` is None where the causal
    rule alone is right, else a bool ``[batch, 1, tokens or 1, cached tokens]`` (True:
    attend), or one per kind of layer where a model's layers see different stretches.
    """

    past_key_values: Cache
    position_ids: torch.Tensor
    attention_mask: torch.Tensor | dict[str, torch.Tensor] | None


#: what a KV byte is for: ``full`` keys and values as the model made them, ``payload``
#: quantized ones, ``scales`` what it takes to read those (scales and zeros), ``residual``
#: the newest tokens of a quantized cache, not quantized yet
KvPart = Literal["full", "payload", "scales", "residual"]


class Rows(Protocol):
    """Requests that join and leave a batch, and the bytes that they hold."""

    def start_prefill(self, start: int = 0) -> None:
        """Make room for one more request, beside the decoding rows.

        ``start`` is the first token of its region; caches without regions ignore it.
        """
        ...

    def drop_prefill(self) -> None:
        """Free the prefilling request's memory; does nothing when there is none."""
        ...

    def join(self) -> None:
        """The prefilled request becomes the last decoding row.

        Where that raises, the rows that decode are as they were before.
        """
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


class BatchCache(Rows, Protocol):
    """A contiguous KV cache of a batch that requests join and leave."""

    def prefill_args(self, tokens: int) -> ForwardArgs:
        """For the next ``tokens`` prompt tokens of the prefilling request."""
        ...

    def prefilled(self, tokens: int) -> None:
        """They are stored."""
        ...

    def decode_args(self) -> ForwardArgs:
        """For one more token in every decoding row."""
        ...

    def decoded(self) -> None:
        """They are stored."""
        ...


class Held(NamedTuple):
    """What a cache holds after its last change, for other threads to read."""

    used_bytes: int
    tokens: int
    padding_bytes: int
    #: the bytes used, by what they are
    parts: Mapping[KvPart, int] = MappingProxyType({})


@runtime_checkable
class Parted(Protocol):
    """A cache whose bytes are not all of one kind."""

    def part_bytes(self) -> dict[KvPart, int]:
        """The bytes used, by what they are."""
        ...


def part_bytes(cache: Rows) -> dict[KvPart, int]:
    """The bytes used, by what they are: a cache that does not say holds full keys and values."""
    return cache.part_bytes() if isinstance(cache, Parted) else {"full": cache.used_bytes()}


def storage_bytes(*tensors: torch.Tensor | None) -> int:
    """Bytes of the storages behind the tensors, so that no view hides memory."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if tensor is not None)
