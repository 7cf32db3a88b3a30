"""The ``static`` policy: every request gets a slot of ``max_model_len`` tokens.

One pool ``[slots, kv_heads, max_model_len, head_dim]`` per layer for the keys and one for
the values, allocated at start. Rows in use lie compactly at the front, decoding rows
first, then the prefilling one, so a forward runs over the view ``[:rows, :, :longest]``
without copying; a freed row is filled with the last one. Each row is left-aligned and has
its own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from servers.contiguous.cache import ForwardArgs
from servers.contiguous.layout import KvLayout
from servers.contiguous.preallocated import PreallocatedLayer


class _Cursor:
    """Where the next forward writes and what it may see; shared by all layers."""

    def __init__(self) -> None:
        self.rows = slice(0, 0)
        #: tokens already stored, where all rows of the forward have the same number
        self.start = 0
        #: tokens stored after the forward in the longest row
        self.width = 0
        #: (row indices, positions) where lengths differ, one token each
        self.scatter: tuple[torch.Tensor, torch.Tensor] | None = None


class _PoolLayer(PreallocatedLayer):  # type: ignore[no-untyped-call]
    """One layer's slice of the pool, behind the interface that transformers' models call."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, cursor: _Cursor) -> None:
        super().__init__(keys, values)
        self._cursor = cursor

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens in place; returns views of all that the rows hold."""
        at = self._cursor
        if at.scatter is None:
            span = slice(at.start, at.start + key_states.shape[-2])
            self.keys[at.rows, :, span] = key_states
            self.values[at.rows, :, span] = value_states
        else:
            rows, positions = at.scatter
            self.keys[rows, :, positions] = key_states[:, :, 0]
            self.values[rows, :, positions] = value_states[:, :, 0]
        seen = slice(0, at.width)
        return self.keys[at.rows, :, seen], self.values[at.rows, :, seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that ``update`` will return."""
        return self._cursor.width, 0

    def get_seq_length(self) -> int:
        """Tokens before those of the forward; only asked where rows have one length."""
        return self._cursor.start


class StaticBatchCache:
    """A pool of slots, allocated whole at construction (see ``BatchCache``)."""

    def __init__(self, layout: KvLayout, slots: int, max_model_len: int) -> None:
        self.slots = slots
        self._device = layout.device
        self._cursor = _Cursor()
        self._layers = [
            _PoolLayer(
                self._pool(layout, slots, shape.heads, max_model_len, shape.key_dim),
                self._pool(layout, slots, shape.heads, max_model_len, shape.value_dim),
                self._cursor,
            )
            for shape in layout.layers
        ]
        self._cache = Cache(layers=list(self._layers))
        self._lengths: list[int] = []
        self._prefill: int | None = None

    @staticmethod
    def _pool(layout: KvLayout, *shape: int) -> torch.Tensor:
        # zeros, not empty: it touches the pages now, so a pool that does not fit fails at start
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)

    @property
    def pool_bytes(self) -> int:
        """Bytes of all pools, used or not."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._layers)

    @property
    def max_model_len(self) -> int:
        """Tokens of a slot."""
        return self._layers[0].get_max_length()

    @property
    def lengths(self) -> list[int]:
        """Tokens that each decoding row has stored."""
        return list(self._lengths)

    def pools(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer, ``[slots, heads, max_model_len, dim]``."""
        return [(layer.keys, layer.values) for layer in self._layers]

    def start_prefill(self, start: int = 0) -> None:
        """The row behind the decoding ones becomes the prefilling one."""
        if len(self._lengths) >= self.slots:
            raise RuntimeError("no free slot: admission let in more requests than there are slots")
        self._prefill = 0

    def prefill_args(self, tokens: int) -> ForwardArgs:
        """The row's view; the causal rule needs no mask, since the row has no padding."""
        done, row = self._prefill_length(), len(self._lengths)
        at = self._cursor
        at.rows, at.start, at.width, at.scatter = slice(row, row + 1), done, done + tokens, None
        positions = torch.arange(done, done + tokens, device=self._device)[None]
        return ForwardArgs(self._cache, positions, None)

    def prefilled(self, tokens: int) -> None:
        """Count them."""
        self._prefill = self._prefill_length() + tokens

    def drop_prefill(self) -> None:
        """The row is free again; what it holds is never read."""
        self._prefill = None

    def join(self) -> None:
        """The row already lies where it belongs."""
        self._lengths.append(self._prefill_length())
        self._prefill = None

    def decode_args(self) -> ForwardArgs:
        """A view over all decoding rows; a mask only where lengths differ."""
        lengths, at = self._lengths, self._cursor
        longest = max(lengths)
        positions = torch.tensor(lengths, device=self._device)
        at.rows, at.start, at.width = slice(0, len(lengths)), longest, longest + 1
        if min(lengths) == longest:
            at.scatter = None
            return ForwardArgs(self._cache, positions[:, None], None)
        at.scatter = (torch.arange(len(lengths), device=self._device), positions)
        seen = torch.arange(longest + 1, device=self._device) <= positions[:, None]
        return ForwardArgs(self._cache, positions[:, None], seen[:, None, None, :])

    def decoded(self) -> None:
        """Every row is one longer."""
        self._lengths = [length + 1 for length in self._lengths]

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Fill each freed row with the last one: one row copy each."""
        before = len(self._lengths)
        order = list(range(before))
        for row in sorted(rows, reverse=True):
            last = len(self._lengths) - 1
            self._copy_row(last, row, self._lengths[last])
            self._lengths[row] = self._lengths[last]
            order[row] = order[last]
            self._lengths.pop()
            order.pop()
        if self._prefill is not None:
            self._copy_row(before, len(self._lengths), self._prefill)
        return order

    def clear(self) -> None:
        """All decoding rows are free; the prefilling one moves to the front."""
        self.leave(range(len(self._lengths)))

    def _copy_row(self, source: int, target: int, tokens: int) -> None:
        if source == target:
            return
        for layer in self._layers:
            layer.keys[target, :, :tokens] = layer.keys[source, :, :tokens]
            layer.values[target, :, :tokens] = layer.values[source, :, :tokens]

    def used_bytes(self) -> int:
        """Storage of the occupied rows, whole slots each."""
        rows = len(self._lengths) + (self._prefill is not None)
        return sum(layer.keys[:rows].nbytes + layer.values[:rows].nbytes for layer in self._layers)

    def tokens_held(self) -> int:
        """Tokens stored in the occupied rows."""
        return sum(self._lengths) + (self._prefill or 0)

    def padding_bytes(self) -> int:
        """None: rows are left-aligned, and what a slot does not hold yet is its reservation."""
        return 0

    def _prefill_length(self) -> int:
        if self._prefill is None:
            raise RuntimeError("no request is being prefilled")
        return self._prefill
