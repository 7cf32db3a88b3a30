"""Before a model is served: does it decode in our caches as it does without any?

An architecture may ignore the mask or the positions that it is given, or keep state
elsewhere. Two short prompts of different lengths are prefilled in chunks, decoded as one
batch, and compared with the model's plain forward over the same tokens. It also warms up.
The caches under test are emptied again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.errors import ModelConfigError
from servers.contiguous.admission import Promise
from servers.contiguous.batch import Runner
from servers.contiguous.cache import BatchCache
from servers.contiguous.cache_padded import PaddedCache
from servers.contiguous.layout import KvLayout
from servers.contiguous.padding import window_mask
from servers.contiguous.runner import ModelRunner, PaddedRunner

#: tokens that one prompt may reach; a cache for the check needs no more
CHECK_TOKENS = 8
#: two prompts at a time
CHECK_ROWS = 2

#: ||ours - plain|| / ||plain|| over a row's logits. Rounding gives about 1e-6 in float32
#: and 1e-2 in half precision; a wrong mask or position gives about 1
_TOLERANCE = {torch.float32: 1e-3}
_HALF_TOLERANCE = 0.2


def check_model(model: Any, cache: BatchCache, device: torch.device) -> None:
    """``check_rows`` of the plain forward over ``cache``, which it leaves empty."""
    check_rows(model, ModelRunner(model, cache, device), device)


@torch.inference_mode()
def check_rows(
    model: Any, runner: Runner, device: torch.device, layout: KvLayout | None = None
) -> None:
    """Rows that join one another; raises ModelConfigError for a model that does not behave.

    ``layout`` is given where its windows, and not the model's own, decide what is seen.
    """
    texts, next_tokens = _texts(model)
    with _refusing(model):
        logits = _decoded(runner, texts, next_tokens)
        plain = [_plain(model, ids, device, layout) for ids in texts]
    runner.cache.clear()
    _compare(model, logits, plain)


@torch.inference_mode()
def check_padded(model: Any, cache: PaddedCache, device: torch.device) -> None:
    """The same for a left-padded batch, whose prompts are prefilled together."""
    runner = PaddedRunner(model, cache, device)
    texts, next_tokens = _texts(model)
    with _refusing(model):
        logits = _decoded_padded(runner, cache, texts, next_tokens)
        plain = [_plain(model, ids, device, None) for ids in texts]
    cache.clear()
    _compare(model, logits, plain)


@contextmanager
def _refusing(model: Any) -> Iterator[None]:
    """What an architecture raises that was not made for such masks, positions or caches."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        first = str(error).strip().split("\n", 1)[0]
        raise ModelConfigError(
            f"--model: {type(model).__name__} does not run in this cache "
            f"({type(error).__name__}: {first})"
        ) from error


def _texts(model: Any) -> tuple[list[list[int]], tuple[int, int]]:
    """Two prompts, and two tokens to go on with."""
    vocab = model.get_input_embeddings().weight.shape[0]
    prompts = [[(7 * index + 3) % vocab for index in range(5)], [11 % vocab, 2 % vocab]]
    return prompts, (5 % vocab, 9 % vocab)


def _decoded(runner: Runner, texts: list[list[int]], tokens: tuple[int, ...]) -> torch.Tensor:
    """The logits after the last of ``tokens``, which are added to every text."""
    logits = torch.empty(0)
    for row, ids in enumerate(texts):
        runner.cache.start_prefill(row * CHECK_TOKENS)
        step = len(ids) if runner.whole_prompts else 2
        for at in range(0, len(ids), step):
            runner.prefill(ids[at : at + step])
        runner.cache.join()
    for token in tokens:
        logits = runner.decode([token] * len(texts))
        for ids in texts:
            ids.append(token)
    return logits


def _decoded_padded(
    runner: PaddedRunner, cache: PaddedCache, texts: list[list[int]], tokens: tuple[int, ...]
) -> torch.Tensor:
    """The same of a batch that is padded on the left and prefilled together."""
    cache.begin([Promise(len(ids), len(tokens)) for ids in texts])
    longest = max(map(len, texts))
    padded = [[0] * (longest - len(ids)) + ids for ids in texts]
    logits = torch.empty(0)
    for at in range(0, longest, 2):
        logits = runner.advance([ids[at : at + 2] for ids in padded])
    for token in tokens:
        logits = runner.advance([[token], [token]])
        for ids in texts:
            ids.append(token)
    return logits


def _plain(
    model: Any, ids: list[int], device: torch.device, layout: KvLayout | None
) -> torch.Tensor:
    """The last logits of the model's plain forward, without any cache."""
    windows = {layer.kind: layer.window for layer in layout.layers} if layout else {}
    masks = {kind: window_mask(0, len(ids), seen, device) for kind, seen in windows.items()}
    # as SlidingBatchCache gives them
    mask: Any = masks if len(masks) > 1 else next(iter(masks.values()), None)
    output = model(
        input_ids=torch.tensor([ids], device=device), attention_mask=mask, use_cache=False
    )
    last: torch.Tensor = output.logits[0, -1]
    return last.float()


def _compare(model: Any, logits: torch.Tensor, plain: list[torch.Tensor]) -> None:
    worst = max(_error(row, expected) for row, expected in zip(logits, plain, strict=True))
    dtype = next(iter(model.parameters())).dtype
    if not worst <= _TOLERANCE.get(dtype, _HALF_TOLERANCE):
        raise ModelConfigError(
            f"--model: {type(model).__name__} gives other logits in a batch with a cache than "
            f"alone without one (relative difference {worst:.2g}); the contiguous caches cannot "
            "serve it"
        )


def _error(ours: torch.Tensor, plain: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(ours - plain) / torch.linalg.vector_norm(plain))
