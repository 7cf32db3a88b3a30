"""``--compile``: the decode step of the static cache through ``torch.compile``.

Compiled code wants shapes that stay. Every step attends over all ``max_model_len`` columns
of the pool, a mask hiding what is not stored, where the plain static cache looks at the
longest row only; the number of rows is one symbol, so that one compiled step serves all
batches of two rows and more, and a second one a single row. Prefill is not compiled: its
chunks have many lengths. Both are compiled at start, so that no request waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

from harness.errors import OptionError
from servers.contiguous.cache_static import StaticBatchCache
from servers.contiguous.preallocated import PreallocatedLayer
from servers.contiguous.runner import ModelRunner


class _FixedLayer(PreallocatedLayer):  # type: ignore[no-untyped-call]
    """One layer's pool, seen whole; tensors say where to write, so nothing is specialised."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys, values)
        #: tokens that each row has stored, ``[rows]``
        self.positions = torch.empty(0)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a token per row in place; returns the rows in their whole length."""
        rows = key_states.shape[0]
        at = torch.arange(rows, device=key_states.device)
        self.keys[at, :, self.positions] = key_states[:, :, 0]
        self.values[at, :, self.positions] = value_states[:, :, 0]
        return self.keys[:rows], self.values[:rows]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The whole pool."""
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> int:
        """Not asked: positions and mask are given."""
        return 0


class CompiledRunner(ModelRunner):
    """A ``ModelRunner`` whose decode is compiled; ``backend`` is one of torch.compile's."""

    def __init__(
        self, model: Any, cache: StaticBatchCache, device: torch.device, backend: str = "inductor"
    ) -> None:
        super().__init__(model, cache, device)
        self._model = model
        self._static = cache
        self._layers = [_FixedLayer(keys, values) for keys, values in cache.pools()]
        self._pool = Cache(layers=list(self._layers))
        self._columns = torch.arange(cache.max_model_len, device=device)
        self._step = torch.compile(self._plain_step, backend=backend)

    def decode(self, tokens: Sequence[int]) -> torch.Tensor:
        """Store one token in every decoding row; the logits ``[rows, vocab]`` of the next ones."""
        positions = torch.tensor(self._static.lengths, device=self._device)
        ids = torch.tensor(tokens, device=self._device)[:, None]
        mask = (self._columns <= positions[:, None])[:, None, None, :]
        if len(tokens) > 1:
            for tensor in (ids, positions, mask):
                torch._dynamo.mark_dynamic(tensor, 0)
        for layer in self._layers:
            layer.positions = positions
        logits: torch.Tensor = self._step(ids, positions, mask)
        self.cache.decoded()
        return logits

    def _plain_step(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions[:, None],
            past_key_values=self._pool,
            use_cache=True,
            **self._forward.options,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits


@torch.inference_mode()
def compiled_runner(model: Any, cache: StaticBatchCache, device: torch.device) -> CompiledRunner:
    """A runner that has compiled what it will need; raises OptionError when that fails."""
    runner = CompiledRunner(model, cache, device)
    try:
        warm_up(runner, min(cache.slots, 2))
    except Exception as error:
        # a missing C++ compiler, or whatever an architecture makes the compiler raise
        first = str(error).strip().split("\n", 1)[0]
        raise OptionError(
            "--compile", True, f"a model that torch.compile can compile here ({first})"
        ) from error
    return runner


def warm_up(runner: CompiledRunner, rows: int) -> None:
    """A decode step with one row, then one with each number of rows up to ``rows``."""
    for row in range(rows):
        runner.cache.start_prefill()
        runner.prefill([0])
        runner.cache.join()
        runner.decode([0] * (row + 1))
    runner.cache.clear()
