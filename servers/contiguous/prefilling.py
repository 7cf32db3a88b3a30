"""The prefilling request of a batch cache: what it has beside the decoding rows."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from transformers import DynamicCache

from servers.contiguous.cache import ForwardArgs

T = TypeVar("T")


class PrefillBeside(Generic[T]):
    """One request, kept in a ``T`` of its own until it joins (a part of ``BatchCache``)."""

    def __init__(self) -> None:
        self._prefill: T | None = None
        self._prefill_length = 0

    def prefilled(self, tokens: int) -> None:
        """Count them."""
        self._prefill_length += tokens

    def drop_prefill(self) -> None:
        """Free the prefilling request's tensors."""
        self._prefill, self._prefill_length = None, 0

    def _begin_prefill(self, own: T) -> None:
        self._prefill, self._prefill_length = own, 0

    def _filling(self) -> T:
        if self._prefill is None:
            raise RuntimeError("no request is being prefilled")
        return self._prefill


class FullPrefill(PrefillBeside[DynamicCache]):
    """The request has full keys and values: batch 1, without padding."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def start_prefill(self, start: int = 0) -> None:
        """A cache of its own."""
        self._begin_prefill(DynamicCache())

    def prefill_args(self, tokens: int) -> ForwardArgs:
        """The causal rule needs no mask: the row has no padding."""
        done = self._prefill_length
        positions = torch.arange(done, done + tokens, device=self._device)[None]
        return ForwardArgs(self._filling(), positions, None)
