"""Log-probabilities of generated tokens, for requests that ask for them.

They are those of the logits as the model gave them, before temperature, top_k and top_p, and
before tokens are withheld: vLLM's default (``raw_logprobs``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

#: as many as vLLM gives by default
MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One token's own log-probability, and the likeliest tokens with theirs, likeliest first."""

    chosen: float
    top: tuple[tuple[int, float], ...]


def raw_logprobs(logits: torch.Tensor, wanted: Sequence[int | None]) -> dict[int, torch.Tensor]:
    """Row -> log-probabilities ``[vocab]`` of those rows that want some."""
    return {
        row: torch.log_softmax(logits[row], dim=-1)
        for row, count in enumerate(wanted)
        if count is not None
    }


def token_logprobs(row: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """Of a chosen token and of the ``count`` likeliest; ``row`` is ``[vocab]``."""
    best = torch.topk(row, min(count, row.numel())) if count else None
    top = zip(best.indices.tolist(), best.values.tolist(), strict=True) if best else ()
    return TokenLogprobs(float(row[token]), tuple(top))


def token_name(token: int) -> str:
    """How a token is called where ids are asked for (``return_tokens_as_token_ids``)."""
    return f"token_id:{token}"
