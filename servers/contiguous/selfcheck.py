"""Before a model is served: does it decode in our caches as it does without any?

An architecture may ignore the mask or the positions that it is given, or keep state
elsewhere. Two short prompts of different lengths are prefilled in chunks, decoded as one
batch, and compared with the model's plain forward over the same tokens. It also warms up.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.errors import ModelConfigError
from servers.contiguous.cache import BatchCache
from servers.contiguous.runner import ModelRunner

#: tokens that one prompt may reach; a cache for the check needs no more
CHECK_TOKENS = 8
#: two prompts at a time
CHECK_ROWS = 2

#: ||ours - plain|| / ||plain|| over a row's logits. Rounding gives about 1e-6 in float32
#: and 1e-2 in half precision; a wrong mask or position gives about 1
_TOLERANCE = {torch.float32: 1e-3}
_HALF_TOLERANCE = 0.2


@torch.inference_mode()
def check_model(model: Any, cache: BatchCache, device: torch.device) -> None:
    """Compare; raises ModelConfigError for a model that does not behave. Empties ``cache``."""
    runner = ModelRunner(model, cache, device)
    vocab = model.get_input_embeddings().weight.shape[0]
    texts = [[(7 * index + 3) % vocab for index in range(5)], [11 % vocab, 2 % vocab]]
    for ids in texts:
        cache.start_prefill()
        for at in range(0, len(ids), 2):
            runner.prefill(ids[at : at + 2])
        cache.join()
    for token in (5 % vocab, 9 % vocab):
        logits = runner.decode([token, token])
        for ids in texts:
            ids.append(token)
    worst = max(_error(model, ids, row, device) for ids, row in zip(texts, logits, strict=True))
    cache.clear()
    dtype = next(iter(model.parameters())).dtype
    if not worst <= _TOLERANCE.get(dtype, _HALF_TOLERANCE):
        raise ModelConfigError(
            f"--model: {type(model).__name__} gives other logits in a batch with a cache than "
            f"alone without one (relative difference {worst:.2g}); the contiguous caches cannot "
            "serve it"
        )


def _error(model: Any, ids: list[int], ours: torch.Tensor, device: torch.device) -> float:
    plain = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0, -1]
    difference = torch.linalg.vector_norm(ours - plain.float())
    return float(difference / torch.linalg.vector_norm(plain.float()))
