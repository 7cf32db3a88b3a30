"""The ``off`` policy: no KV cache. Every step computes every running text from its start.

The rows hold token ids, and no tensor outlives a forward. A batch is padded on the right:
under the causal rule no token sees what lies behind it, so no mask is needed, and the logits
are taken at each row's own last token. What is computed for padding is part of the cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class RecomputeRows:
    """The texts of a batch (``Rows``): nothing of them is kept on the device."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        #: the prefilled one, until it joins
        self.prompt: list[int] | None = None

    def start_prefill(self, start: int = 0) -> None:
        """Nothing to make room for."""
        self.prompt = None

    def drop_prefill(self) -> None:
        """Forget the prompt."""
        self.prompt = None

    def join(self) -> None:
        """The prompt becomes the last text."""
        if self.prompt is None:
            raise RuntimeError("no request is being prefilled")
        self.texts.append(self.prompt)
        self.prompt = None

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Forget texts."""
        gone = set(rows)
        order = [row for row in range(len(self.texts)) if row not in gone]
        self.texts = [self.texts[row] for row in order]
        return order

    def clear(self) -> None:
        """Forget all."""
        self.texts = []

    def used_bytes(self) -> int:
        """No KV bytes."""
        return 0

    def tokens_held(self) -> int:
        """No token has keys or values."""
        return 0

    def padding_bytes(self) -> int:
        """No KV bytes."""
        return 0


class RecomputeRunner:
    """transformers' own ``forward`` without a cache; used by the engine thread only."""

    #: half a prompt would be computed for nothing, and again with the other half
    whole_prompts = True

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self.cache = RecomputeRows()
        self._device = device
        self._head: torch.nn.Module | None = model.get_output_embeddings()

    def prefill(self, ids: Sequence[int]) -> torch.Tensor:
        """A whole prompt; the logits ``[1, vocab]`` after its last token."""
        logits = self._forward([list(ids)])
        self.cache.prompt = list(ids)
        return logits

    def decode(self, tokens: Sequence[int]) -> torch.Tensor:
        """All texts with one more token each; the logits ``[rows, vocab]`` of the next ones."""
        texts = [[*text, token] for text, token in zip(self.cache.texts, tokens, strict=True)]
        logits = self._forward(texts)
        self.cache.texts = texts
        return logits

    def _forward(self, texts: list[list[int]]) -> torch.Tensor:
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        padded = [text + [0] * (longest - len(text)) for text in texts]
        ends = torch.tensor([length - 1 for length in lengths], device=self._device)
        rows = torch.arange(len(texts), device=self._device)
        with _head_over(self._head, rows, ends):
            output = self._model(
                input_ids=torch.tensor(padded, device=self._device), use_cache=False
            )
        logits: torch.Tensor = output.logits
        last = logits[rows, ends] if logits.shape[1] == longest else logits[:, 0]
        return last.float()


@contextmanager
def _head_over(
    head: torch.nn.Module | None, rows: torch.Tensor, ends: torch.Tensor
) -> Iterator[None]:
    """Let the output embedding see each row's own end alone: ``[rows, 1, hidden]``.

    The vocabulary is by far the widest of a model's tensors, and rows end at different
    columns: ``logits_to_keep`` would give rows x ends of them. A model without such a module
    gives the logits of all columns.
    """
    if head is None:
        yield
        return

    def at_ends(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden, *more = given
        return hidden[rows, ends][:, None], *more

    hook = head.register_forward_pre_hook(at_ends)
    try:
        yield
    finally:
        hook.remove()
