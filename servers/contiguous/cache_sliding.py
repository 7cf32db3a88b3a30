"""The ``sliding`` policy: a padded batch whose layers keep the last window - 1 tokens.

As transformers' sliding layer does, a layer keeps what the next token can see beside
itself, window - 1 tokens, so memory per request ends at the window. A layer without a
window keeps all. Rows are padded on the left, as in ``dynamic``. What is kept is copied out
of the longer tensor that attention has seen: transformers keeps a view of it, which holds
the whole prompt in memory until the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from servers.contiguous.cache import ForwardArgs, storage_bytes
from servers.contiguous.cache_dynamic import front, stack
from servers.contiguous.layout import KvLayout, LayerShape
from servers.contiguous.padding import left_padding_mask, window_mask
from servers.contiguous.prefilling import PrefillBeside


class _WindowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer's keys and values ``[rows, heads, kept tokens, dim]``."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = shape.kind == "sliding_attention"
        self.is_initialized = True
        self.shape = shape
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        #: tokens of the longest row, kept or not
        self.seen = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the first update brings the tensors."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append; returns what was kept and the new tokens, and keeps the end of that."""
        self.seen += key_states.shape[-2]
        keys, self.keys = self._append(self.keys, key_states)
        values, self.values = self._append(self.values, value_states)
        return keys, values

    def _append(
        self, kept: torch.Tensor | None, new: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = new if kept is None else torch.cat([kept, new], dim=-2)
        width = whole.shape[-2]
        staying = self.shape.kept(width)
        if staying == width and kept is not None:
            return whole, whole
        # a copy of its own, also of the first states: they are a view of the projection's output
        return whole, whole[:, :, width - staying :].clone(memory_format=torch.contiguous_format)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that ``update`` will return."""
        kept = self.shape.kept(self.seen)
        return kept + query_length, self.seen - kept

    def get_seq_length(self) -> int:
        """Tokens before those of the forward, those dropped included."""
        return self.seen

    def get_max_length(self) -> int:
        """The window; -1 without one."""
        return -1 if self.shape.window is None else self.shape.window

    def take(self, other: _WindowLayer) -> None:
        """Add the other's one row behind ours."""
        self.seen = max(self.seen, other.seen)
        width = self.shape.kept(self.seen)
        self.keys = _joined(self.keys, other.keys, width)
        self.values = _joined(self.values, other.values, width)
        # freed here, so that only one layer exists twice at a time
        other.keys = other.values = None

    def without_last(self, rows: int, seen: int) -> None:
        """Undo what was done of a ``take``: views, which need no memory."""
        self.seen = seen
        width = self.shape.kept(seen)
        if self.keys is not None and self.values is not None:
            self.keys = front(self.keys, rows, width)
            self.values = front(self.values, rows, width)

    def select(self, rows: torch.Tensor, seen: int) -> None:
        """Copy the rows that stay, without the padding that none of them needs."""
        trim = self.shape.kept(self.seen) - self.shape.kept(seen)
        self.seen = seen
        if self.keys is not None and self.values is not None:
            self.keys = self.keys[:, :, trim:].index_select(0, rows)
            self.values = self.values[:, :, trim:].index_select(0, rows)

    def nbytes(self) -> int:
        """Storages of both."""
        return storage_bytes(self.keys, self.values)


class SlidingBatchCache(PrefillBeside[list[_WindowLayer]]):
    """A left-padded batch of window layers and a second one for the prefilling request.

    ``own_masks`` is for a model that makes masks for its windows by itself: it then gets one
    for each kind of its layers in every forward, so that only our lengths decide.
    """

    def __init__(self, layout: KvLayout, *, own_masks: bool) -> None:
        super().__init__()
        self._shapes = layout.layers
        self._device = layout.device
        self._own_masks = own_masks
        self._windows: dict[str, int | None] = {shape.kind: shape.window for shape in layout.layers}
        self._batch: list[_WindowLayer] | None = None
        self._lengths: list[int] = []

    def start_prefill(self, start: int = 0) -> None:
        """Layers of its own, batch 1, without padding."""
        self._begin_prefill([_WindowLayer(shape) for shape in self._shapes])

    def prefill_args(self, tokens: int) -> ForwardArgs:
        """Masks where a window is shorter than the text so far."""
        done = self._prefill_length
        positions = torch.arange(done, done + tokens, device=self._device)[None]
        masks = {
            kind: self._window_mask(done, tokens, window) for kind, window in self._windows.items()
        }
        return ForwardArgs(self._cache(self._filling()), positions, _as_argument(masks))

    def join(self) -> None:
        """Put both together, layer by layer, as wide as the longer one is in each."""
        joining = self._filling()
        if self._batch is None:
            self._batch = joining
        else:
            try:
                for mine, other in zip(self._batch, joining, strict=True):
                    mine.take(other)
            except Exception:
                for layer in self._batch:
                    layer.without_last(len(self._lengths), max(self._lengths))
                raise
        self._lengths.append(self._prefill_length)
        self.drop_prefill()

    def decode_args(self) -> ForwardArgs:
        """All rows; masks that hide the padding where there is any."""
        if self._batch is None:
            raise RuntimeError("no row to decode")
        positions = torch.tensor(self._lengths, device=self._device)[:, None]
        masks = {kind: self._padding_mask(window) for kind, window in self._windows.items()}
        return ForwardArgs(self._cache(self._batch), positions, _as_argument(masks))

    def decoded(self) -> None:
        """Every row is one longer."""
        self._lengths = [length + 1 for length in self._lengths]

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Copy the rows that stay, in every layer."""
        gone = set(rows)
        order = [row for row in range(len(self._lengths)) if row not in gone]
        self._lengths = [self._lengths[row] for row in order]
        if not order or self._batch is None:
            self._batch = None
            return order
        keep = torch.tensor(order, device=self._device)
        for layer in self._batch:
            layer.select(keep, max(self._lengths))
        return order

    def clear(self) -> None:
        """Free the batch, half written or not."""
        self._batch, self._lengths = None, []

    def used_bytes(self) -> int:
        """Storages of the padded batch and of the prefilling request."""
        return sum(layer.nbytes() for layer in [*(self._batch or ()), *(self._prefill or ())])

    def tokens_held(self) -> int:
        """Tokens stored, in the layers that keep most."""
        lengths = [*self._lengths, self._prefill_length]
        return sum(max(shape.kept(length) for shape in self._shapes) for length in lengths)

    def padding_bytes(self) -> int:
        """Columns on the left of the shorter rows, layer by layer."""
        total, rows = 0, len(self._lengths)
        for layer in self._batch or ():
            kept = [layer.shape.kept(length) for length in self._lengths]
            columns = rows * max(kept)
            if columns:
                total += layer.nbytes() * (columns - sum(kept)) // columns
        return total

    def _window_mask(self, done: int, tokens: int, window: int | None) -> torch.Tensor | None:
        causal = window is None or done + tokens <= window
        if causal and not self._own_masks:
            return None
        return window_mask(done, tokens, window, self._device)

    def _padding_mask(self, window: int | None) -> torch.Tensor | None:
        kept = [length if window is None else min(length, window - 1) for length in self._lengths]
        mask = left_padding_mask(kept, self._device)
        if mask is None and self._own_masks:
            shape = (len(kept), 1, 1, max(kept) + 1)
            return torch.ones(shape, dtype=torch.bool, device=self._device)
        return mask

    def _cache(self, layers: list[_WindowLayer]) -> Cache:
        return Cache(layers=list(layers))


def _joined(
    batch: torch.Tensor | None, row: torch.Tensor | None, width: int
) -> torch.Tensor | None:
    return None if batch is None or row is None else stack(batch, row, width)


def _as_argument(
    masks: dict[str, torch.Tensor | None],
) -> torch.Tensor | dict[str, torch.Tensor] | None:
    """One mask where all layers are of one kind, else one for each by its name."""
    given = {kind: mask for kind, mask in masks.items() if mask is not None}
    if len(masks) > 1:
        return given
    return next(iter(given.values()), None)
