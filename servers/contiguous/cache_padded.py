"""One left-padded batch that runs until all of it has ended (``--batching static``).

All prompts end in the same column, shorter ones have padding before them, and each step
adds one column to every row, whether its request still runs or not. Nobody joins and
nobody leaves in between, so no row is ever copied.

The storage is made per batch: a transformers ``DynamicCache`` (``growing``), or a rectangle
``[rows, kv_heads, columns, head_dim]`` of memory that was allocated at start
(``ColumnPool``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache

from servers.contiguous.admission import Promise
from servers.contiguous.cache import ForwardArgs, Held
from servers.contiguous.layout import KvLayout
from servers.contiguous.preallocated import PreallocatedLayer

#: an empty cache for so many rows of at most so many columns
Storage = Callable[[int, int], Cache]


def growing(rows: int, columns: int) -> Cache:
    """A column is appended per token by ``torch.cat``, as in transformers' own generate."""
    return DynamicCache()


class _RectangleLayer(PreallocatedLayer):  # type: ignore[no-untyped-call]
    """One layer's part of the pool, behind the interface that transformers' models call."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys, values)
        self._stored = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new columns in place; returns views of all that are stored."""
        before, self._stored = self._stored, self._stored + key_states.shape[-2]
        self.keys[:, :, before : self._stored] = key_states
        self.values[:, :, before : self._stored] = value_states
        return self.keys[:, :, : self._stored], self.values[:, :, : self._stored]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that ``update`` will return."""
        return self._stored + query_length, 0

    def get_seq_length(self) -> int:
        """Columns stored."""
        return self._stored


class ColumnPool:
    """Memory for ``tokens`` tokens per layer, allocated whole at construction."""

    def __init__(self, layout: KvLayout, tokens: int) -> None:
        def memory(elements: int) -> torch.Tensor:
            # zeros, not empty: it touches the pages now, so a pool that does not fit fails at start
            return torch.zeros((tokens, elements), dtype=layout.dtype, device=layout.device)

        self._heads = [shape.heads for shape in layout.layers]
        self._keys = [memory(shape.heads * shape.key_dim) for shape in layout.layers]
        self._values = [memory(shape.heads * shape.value_dim) for shape in layout.layers]

    def __call__(self, rows: int, columns: int) -> Cache:
        """The pool's front as a rectangle; what a former batch left in it is never read."""
        layers = []
        for heads, keys, values in zip(self._heads, self._keys, self._values, strict=True):
            shape = (rows, heads, columns, -1)
            layers.append(
                _RectangleLayer(
                    keys[: rows * columns].view(shape), values[: rows * columns].view(shape)
                )
            )
        return Cache(layers=list(layers))


class PaddedCache:
    """The rows of one batch at a time; ``columns`` says how long a batch can become."""

    def __init__(
        self,
        storage: Storage,
        columns: Callable[[Sequence[Promise]], int],
        max_model_len: int,
        device: torch.device,
    ) -> None:
        self._storage = storage
        self._columns = columns
        self._device = device
        self._last_position = max_model_len - 1
        self._cache: Cache | None = None
        #: padding on the left of each row
        self._padding: list[int] = []
        #: of the rows whose requests still run
        self._live: set[int] = set()
        self._width = 0

    def begin(self, rows: Sequence[Promise]) -> None:
        """An empty batch of these requests."""
        self._cache = self._storage(len(rows), self._columns(rows))
        longest = max(row.prompt_tokens for row in rows)
        self._padding = [longest - row.prompt_tokens for row in rows]
        self._live = set(range(len(rows)))
        self._width = 0

    def args(self, tokens: int) -> ForwardArgs:
        """For the next ``tokens`` columns; a mask only where a row has padding."""
        if self._cache is None:
            raise RuntimeError("no batch has begun")
        padding = torch.tensor(self._padding, device=self._device)[:, None]
        new = torch.arange(self._width, self._width + tokens, device=self._device)
        # a row goes on after its request has ended: its position only has to be possible
        positions = (new - padding).clamp(0, self._last_position)
        if not any(self._padding):
            return ForwardArgs(self._cache, positions, None)
        columns = torch.arange(self._width + tokens, device=self._device)
        seen = (columns <= new[:, None]) & (columns >= padding[:, :, None])
        # padding sees itself, so that no softmax is over nothing; nobody reads what comes out
        seen |= columns == new[:, None]
        return ForwardArgs(self._cache, positions, seen[:, None])

    def stored(self, tokens: int) -> None:
        """Count them."""
        self._width += tokens

    def end_row(self, row: int) -> None:
        """Its request has ended; the row stays, and no token in it counts as held."""
        self._live.discard(row)

    def clear(self) -> None:
        """Free the batch, half written or not."""
        self._cache, self._padding, self._live, self._width = None, [], set(), 0

    def held(self) -> Held:
        """All columns are used; held are the running requests' tokens, the rest is padding."""
        if self._cache is None:
            return Held(0, 0, 0)
        # transformers types layers as ones that may have no keys, which ours have once written
        layers: list[Any] = list(self._cache.layers)
        states = [part for layer in layers for part in (layer.keys, layer.values)]
        used = sum(part[:, :, : self._width].nbytes for part in states if part is not None)
        tokens = sum(max(self._width - self._padding[row], 0) for row in self._live)
        slots = len(self._padding) * self._width
        return Held(used, tokens, used * (slots - tokens) // slots if slots else 0)
