"""The ``dynamic`` policy: a padded batch that grows, re-packed when requests join or leave.

The batch is a transformers ``DynamicCache`` whose tensors are as long as the longest row;
shorter rows are padded on the left, so that each step appends one column (``torch.cat``, a
copy of the layer: at every step the old and the new keys of one layer live together for a
moment, then its values). Joining pads to the longer of the two, leaving copies the rows
that stay and trims what padding no row needs any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from servers.contiguous.cache import ForwardArgs, storage_bytes
from servers.contiguous.layout import KvLayout
from servers.contiguous.prefilling import FullPrefill


class DynamicBatchCache(FullPrefill):
    """A left-padded ``DynamicCache`` and a second one for the prefilling request."""

    def __init__(self, layout: KvLayout) -> None:
        super().__init__(layout.device)
        self._batch: DynamicCache | None = None
        self._lengths: list[int] = []
        #: padding on the left of each row, ``[rows]``; None when no row has any
        self._padding: torch.Tensor | None = None

    def join(self) -> None:
        """Pad both to the longer one and put them together, layer by layer."""
        joining, batch = self._filling(), self._batch
        lengths = [*self._lengths, self._prefill_length]
        if batch is None:
            self._batch = joining
        else:
            try:
                padding = self._padding_of(lengths)
                for mine, other in zip(layers_of(batch), layers_of(joining), strict=True):
                    mine.keys = stack(mine.keys, other.keys, max(lengths))
                    mine.values = stack(mine.values, other.values, max(lengths))
                    # freed here, so that only one layer exists twice at a time
                    other.keys = other.values = None
            except Exception:
                self._without_last(batch)
                raise
            self._padding = padding
        self._lengths = lengths
        self.drop_prefill()

    def _without_last(self, batch: DynamicCache) -> None:
        """Take a row that joined some layers out of them again.

        Views, which need no memory; the next step copies them, as it does every layer.
        """
        rows, width = len(self._lengths), max(self._lengths)
        for layer in layers_of(batch):
            layer.keys = front(layer.keys, rows, width)
            layer.values = front(layer.values, rows, width)

    def decode_args(self) -> ForwardArgs:
        """All rows; a mask that hides the padding where there is any."""
        if self._batch is None:
            raise RuntimeError("no row to decode")
        positions = torch.tensor(self._lengths, device=self._device)[:, None]
        if self._padding is None:
            return ForwardArgs(self._batch, positions, None)
        columns = torch.arange(max(self._lengths) + 1, device=self._device)
        mask = (columns >= self._padding[:, None])[:, None, None, :]
        return ForwardArgs(self._batch, positions, mask)

    def decoded(self) -> None:
        """Every row is one longer; the padding stays as it is."""
        self._lengths = [length + 1 for length in self._lengths]

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Copy the rows that stay, without the padding that none of them needs."""
        gone = set(rows)
        order = [row for row in range(len(self._lengths)) if row not in gone]
        width = max(self._lengths)
        self._lengths = [self._lengths[row] for row in order]
        if not order or self._batch is None:
            self._batch = None
        else:
            trim = width - max(self._lengths)
            keep = torch.tensor(order, device=self._device)
            for layer in layers_of(self._batch):
                # index_select copies, so the old storage is freed whole
                layer.keys = layer.keys[:, :, trim:].index_select(0, keep)
                layer.values = layer.values[:, :, trim:].index_select(0, keep)
        self._padding = self._padding_of(self._lengths)
        return order

    def clear(self) -> None:
        """Free the batch, half written or not."""
        self._batch, self._lengths, self._padding = None, [], None

    def used_bytes(self) -> int:
        """Storages of the padded batch and of the prefilling request."""
        return cache_bytes(self._batch) + cache_bytes(self._prefill)

    def tokens_held(self) -> int:
        """Tokens stored, padding excluded."""
        return sum(self._lengths) + self._prefill_length

    def padding_bytes(self) -> int:
        """Columns on the left of the shorter rows, as a share of the batch's storages."""
        if self._batch is None or not self._lengths:
            return 0
        rows, longest = len(self._lengths), max(self._lengths)
        missing = rows * longest - sum(self._lengths)
        return cache_bytes(self._batch) * missing // (rows * longest)

    def _padding_of(self, lengths: Sequence[int]) -> torch.Tensor | None:
        longest = max(lengths, default=0)
        missing = [longest - length for length in lengths]
        return torch.tensor(missing, device=self._device) if any(missing) else None


def layers_of(cache: DynamicCache) -> list[Any]:
    """Its layers; transformers types them as ones that may have no keys, which ours have."""
    return list(cache.layers)


def stack(batch: torch.Tensor, row: torch.Tensor, width: int) -> torch.Tensor:
    """``[n, heads, a, dim]`` and ``[1, heads, b, dim]`` to ``[n + 1, heads, width, dim]``."""
    return torch.cat([widen(batch, width), widen(row, width)])


def front(states: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """The first rows and the last ``width`` tokens, as a view."""
    return states[:rows, :, states.shape[-2] - width :]


def widen(states: torch.Tensor, width: int) -> torch.Tensor:
    """Pad ``[n, heads, tokens, dim]`` on the left to ``width`` tokens."""
    missing = width - states.shape[-2]
    return pad(states, (0, 0, missing, 0)) if missing else states


def cache_bytes(cache: DynamicCache | None) -> int:
    """Bytes of all layers' storages."""
    if cache is None:
        return 0
    return sum(storage_bytes(layer.keys, layer.values) for layer in layers_of(cache))
