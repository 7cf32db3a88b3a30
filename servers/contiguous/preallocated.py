"""A layer whose memory exists from the start, behind the interface of transformers' models."""

from __future__ import annotations

import torch
from transformers.cache_utils import CacheLayerMixin


class PreallocatedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values ``[rows, heads, tokens, dim]``; a subclass says where a forward writes."""

    is_sliding = False
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys = keys
        self.values = values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the memory exists."""

    def get_max_length(self) -> int:
        """Tokens that a row can hold."""
        return int(self.keys.shape[-2])
