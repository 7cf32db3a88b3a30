"""Masks of a batch whose shorter rows are padded on the left."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def left_padding_mask(stored: Sequence[int], device: torch.device) -> torch.Tensor | None:
    """For one more token in each row, ``[rows, 1, 1, columns]``; None without any padding.

    ``stored`` are the tokens of each row before it; all rows end in the same column.
    """
    longest = max(stored)
    if min(stored) == longest:
        return None
    padding = torch.tensor([longest - length for length in stored], device=device)
    columns = torch.arange(longest + 1, device=device)
    return (columns >= padding[:, None])[:, None, None, :]


def window_mask(done: int, tokens: int, window: int | None, device: torch.device) -> torch.Tensor:
    """For ``tokens`` tokens after ``done`` of one row, ``[1, 1, tokens, columns]``.

    The columns are what a layer of this window has kept of the ``done`` tokens (the last
    ``window - 1``), then the new ones. A token sees itself and ``window - 1`` before it.
    """
    kept = done if window is None else min(done, window - 1)
    queries = torch.arange(done, done + tokens, device=device)[:, None]
    keys = torch.arange(done - kept, done + tokens, device=device)
    seen = keys <= queries
    if window is not None:
        seen &= keys > queries - window
    return seen[None, None]
