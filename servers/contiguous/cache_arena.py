"""The ``static`` policy with regions: each request lies in one piece of a common arena.

One tensor ``[1, kv_heads, arena tokens, head_dim]`` per layer for the keys and one for the
values, allocated at start. A request's region is as long as what it reserves, begins where
admission says, and never moves; its tokens are left-aligned in it.

Prefill, and decoding one request, read the region as a view. Rows of a batch begin at
unequal distances, which no view can express, so a step gathers them: one layer's keys, then
its values, are copied into ``[rows, kv_heads, longest, head_dim]`` and dropped after that
layer's attention. Chosen over attention row by row, which costs a call per row and layer,
and over one masked sequence of the whole arena, which computes rows x arena tokens. The
copy is what ``dynamic`` pays for its concatenation; it shows as a temporary, not as cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from servers.contiguous.cache import ForwardArgs
from servers.contiguous.layout import KvLayout
from servers.contiguous.preallocated import PreallocatedLayer


class _Place:
    """Where the next forward writes and reads; shared by all layers."""

    def __init__(self) -> None:
        #: arena tokens that one row writes, and all that it reads
        self.spans = (slice(0, 0), slice(0, 0))
        #: the same for several rows: ``[rows]`` and ``[rows x width]`` arena tokens
        self.gather: tuple[torch.Tensor, torch.Tensor] | None = None
        #: tokens per row that attention sees
        self.width = 0
        #: of them, those stored before the forward
        self.before = 0


class _ArenaLayer(PreallocatedLayer):  # type: ignore[no-untyped-call]
    """One layer's arena, behind the interface that transformers' models call."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, place: _Place) -> None:
        super().__init__(keys, values)
        self._place = place

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new tokens in place; returns all that the rows hold, row by row."""
        return self._exchange(self.keys, key_states), self._exchange(self.values, value_states)

    def _exchange(self, arena: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        place = self._place
        if place.gather is None:
            write, read = place.spans
            arena[:, :, write] = states
            return arena[:, :, read]
        positions, seen = place.gather
        # [rows, heads, 1, dim] to the [heads, rows, dim] that lie at the rows' positions
        arena[0].index_copy_(1, positions, states[:, :, 0].transpose(0, 1))
        rows = arena[0].index_select(1, seen)
        return rows.view(len(rows), -1, place.width, rows.shape[-1]).transpose(0, 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that ``update`` will return."""
        return self._place.width, 0

    def get_seq_length(self) -> int:
        """Tokens before those of the forward; only asked where rows have one length."""
        return self._place.before


class ArenaBatchCache:
    """An arena of ``tokens`` tokens, allocated whole at construction (see ``BatchCache``)."""

    def __init__(self, layout: KvLayout, tokens: int) -> None:
        self.tokens = tokens
        self._device = layout.device
        self._place = _Place()
        self._layers = [
            _ArenaLayer(
                self._arena(layout, shape.heads, shape.key_dim),
                self._arena(layout, shape.heads, shape.value_dim),
                self._place,
            )
            for shape in layout.layers
        ]
        self._cache = Cache(layers=list(self._layers))
        self._starts: list[int] = []
        self._lengths: list[int] = []
        #: (start, tokens stored) of the prefilling request
        self._prefill: tuple[int, int] | None = None

    def _arena(self, layout: KvLayout, heads: int, dim: int) -> torch.Tensor:
        # zeros, not empty: it touches the pages now, so an arena that does not fit fails at start
        shape = (1, heads, self.tokens, dim)
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)

    @property
    def arena_bytes(self) -> int:
        """Bytes of all arenas, used or not."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self._layers)

    def start_prefill(self, start: int = 0) -> None:
        """The request's region begins at ``start``."""
        self._prefill = (start, 0)

    def prefill_args(self, tokens: int) -> ForwardArgs:
        """The region's view; the causal rule needs no mask, since the row has no padding."""
        start, done = self._filling()
        self._view(start, done, tokens)
        positions = torch.arange(done, done + tokens, device=self._device)[None]
        return ForwardArgs(self._cache, positions, None)

    def prefilled(self, tokens: int) -> None:
        """Count them."""
        start, done = self._filling()
        self._prefill = (start, done + tokens)

    def drop_prefill(self) -> None:
        """The region is free again; what it holds is never read."""
        self._prefill = None

    def join(self) -> None:
        """The request stays where it lies."""
        start, done = self._filling()
        self._starts.append(start)
        self._lengths.append(done)
        self._prefill = None

    def decode_args(self) -> ForwardArgs:
        """One row as a view, several gathered; a mask only where lengths differ."""
        lengths, longest = self._lengths, max(self._lengths)
        positions = torch.tensor(lengths, device=self._device)[:, None]
        if len(lengths) == 1:
            self._view(self._starts[0], longest, 1)
            return ForwardArgs(self._cache, positions, None)
        starts = torch.tensor(self._starts, device=self._device)[:, None]
        columns = torch.arange(longest + 1, device=self._device)
        place = self._place
        # past its end a row repeats its own last token: a neighbour's could be infinite
        seen = starts + torch.minimum(columns, positions)
        place.gather = ((starts + positions).flatten(), seen.flatten())
        place.width, place.before = longest + 1, longest
        if min(lengths) == longest:
            return ForwardArgs(self._cache, positions, None)
        return ForwardArgs(self._cache, positions, (columns <= positions)[:, None, None, :])

    def decoded(self) -> None:
        """Every row is one longer."""
        self._lengths = [length + 1 for length in self._lengths]

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Forget the rows; nobody moves."""
        gone = set(rows)
        order = [row for row in range(len(self._lengths)) if row not in gone]
        self._starts = [self._starts[row] for row in order]
        self._lengths = [self._lengths[row] for row in order]
        return order

    def clear(self) -> None:
        """Forget all decoding rows."""
        self._starts, self._lengths = [], []

    def used_bytes(self) -> int:
        """Storage of the tokens that are stored."""
        return self.arena_bytes // self.tokens * self.tokens_held()

    def tokens_held(self) -> int:
        """Tokens stored in all regions."""
        return sum(self._lengths) + (self._prefill[1] if self._prefill else 0)

    def padding_bytes(self) -> int:
        """None: a region holds its request's tokens and nothing else."""
        return 0

    def _view(self, start: int, done: int, tokens: int) -> None:
        """The next forward writes ``tokens`` after the ``done`` of the region at ``start``."""
        end = start + done + tokens
        place = self._place
        place.spans, place.gather = (slice(start + done, end), slice(start, end)), None
        place.width, place.before = done + tokens, done

    def _filling(self) -> tuple[int, int]:
        if self._prefill is None:
            raise RuntimeError("no request is being prefilled")
        return self._prefill
