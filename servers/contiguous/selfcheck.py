"""Before a model is served: does it decode in our caches as it does without any?

An architecture may ignore the mask or the positions that it is given, or keep state
elsewhere. Two short prompts of different lengths are prefilled in chunks, decoded as one
batch, and compared with the model's plain forward over the same tokens. It also warms up.
The caches under test are emptied again.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.errors import ModelConfigError
from servers.contiguous.admission import Promise
from servers.contiguous.cache import BatchCache
from servers.contiguous.cache_padded import PaddedCache
from servers.contiguous.runner import ModelRunner, PaddedRunner

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
    """Rows that join one another; raises ModelConfigError for a model that does not behave."""
    runner = ModelRunner(model, cache, device)
    texts, next_tokens = _texts(model)
    for row, ids in enumerate(texts):
        cache.start_prefill(row * CHECK_TOKENS)
        for at in range(0, len(ids), 2):
            runner.prefill(ids[at : at + 2])
        cache.join()
    for token in next_tokens:
        logits = runner.decode([token, token])
        for ids in texts:
            ids.append(token)
    cache.clear()
    _compare(model, texts, logits, device)


@torch.inference_mode()
def check_padded(model: Any, cache: PaddedCache, device: torch.device) -> None:
    """The same for a left-padded batch, whose prompts are prefilled together."""
    runner = PaddedRunner(model, cache, device)
    texts, next_tokens = _texts(model)
    cache.begin([Promise(len(ids), len(next_tokens)) for ids in texts])
    longest = max(map(len, texts))
    padded = [[0] * (longest - len(ids)) + ids for ids in texts]
    for at in range(0, longest, 2):
        runner.advance([ids[at : at + 2] for ids in padded])
    for token in next_tokens:
        logits = runner.advance([[token], [token]])
        for ids in texts:
            ids.append(token)
    cache.clear()
    _compare(model, texts, logits, device)


def _texts(model: Any) -> tuple[list[list[int]], tuple[int, int]]:
    """Two prompts, and two tokens to go on with."""
    vocab = model.get_input_embeddings().weight.shape[0]
    prompts = [[(7 * index + 3) % vocab for index in range(5)], [11 % vocab, 2 % vocab]]
    return prompts, (5 % vocab, 9 % vocab)


def _compare(
    model: Any, texts: list[list[int]], logits: torch.Tensor, device: torch.device
) -> None:
    worst = max(_error(model, ids, row, device) for ids, row in zip(texts, logits, strict=True))
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
