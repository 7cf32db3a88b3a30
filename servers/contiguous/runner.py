"""The model's forward over a batch cache: token ids in, float32 logits out."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from servers.contiguous.cache import BatchCache, ForwardArgs
from servers.contiguous.cache_padded import PaddedCache


class Forward:
    """transformers' own ``forward``: the last position's logits ``[rows, vocab]``, float32."""

    def __init__(self, model: Any) -> None:
        self._model = model
        # lm_head over the last position only, where the architecture can
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if keeps else {}

    def __call__(self, input_ids: torch.Tensor, args: ForwardArgs) -> torch.Tensor:
        """``input_ids`` is ``[rows, new tokens]``."""
        output = self._model(
            input_ids=input_ids,
            attention_mask=args.attention_mask,
            position_ids=args.position_ids,
            past_key_values=args.past_key_values,
            use_cache=True,
            **self._options,
        )
        # float32 before choosing, as generate does: the same ties, the same winners
        last: torch.Tensor = output.logits[:, -1].float()
        return last


class ModelRunner:
    """Forwards on one batch cache; used by the engine thread only."""

    def __init__(self, model: Any, cache: BatchCache, device: torch.device) -> None:
        self._forward = Forward(model)
        self.cache = cache
        self._device = device

    def prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """Store a chunk of the prefilling request; the logits ``[1, vocab]`` of its last token."""
        args = self.cache.prefill_args(len(ids))
        logits = self._forward(torch.tensor([ids], device=self._device), args)
        self.cache.prefilled(len(ids))
        return logits

    def decode(self, tokens: Sequence[int]) -> torch.Tensor:
        """Store one token in every decoding row; the logits ``[rows, vocab]`` of the next ones."""
        args = self.cache.decode_args()
        logits = self._forward(torch.tensor(tokens, device=self._device)[:, None], args)
        self.cache.decoded()
        return logits


class PaddedRunner:
    """The same over one left-padded batch."""

    def __init__(self, model: Any, cache: PaddedCache, device: torch.device) -> None:
        self._forward = Forward(model)
        self.cache = cache
        self._device = device

    def advance(self, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Store new columns, ``[rows, new]`` ids; the logits ``[rows, vocab]`` of the last."""
        args = self.cache.args(len(ids[0]))
        logits = self._forward(torch.tensor(ids, device=self._device), args)
        self.cache.stored(len(ids[0]))
        return logits
