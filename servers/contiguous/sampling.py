"""From logits to token ids: greedy for the whole batch at once, sampling row by row."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from servers.contiguous.logprobs import TokenLogprobs, raw_logprobs, token_logprobs

#: below it a temperature is taken for 0 (greedy), since logits / temperature overflows
GREEDY_BELOW = 1e-5
#: a higher temperature is taken for it: all chances are equal long before, and a number that
#: float32 does not hold would make -inf / inf of a withheld token
FLAT_ABOVE = 1e30


@dataclass(frozen=True)
class SamplingParams:
    """How one request wants its tokens chosen, and when it ends."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    #: 0 for no limit
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    #: log-probabilities of so many likeliest tokens beside each chosen one; None: of none
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """The likeliest token, always."""
        return self.temperature < GREEDY_BELOW


class Sampler:
    """One request's choice of tokens; owns its random generator, so neighbours change nothing."""

    def __init__(
        self, params: SamplingParams, stop_ids: frozenset[int], device: torch.device
    ) -> None:
        self.greedy = params.greedy
        #: of the newest token, where the request wants them
        self.newest: TokenLogprobs | None = None
        self._params = params
        #: tokens that may not come before ``min_tokens``
        self._withheld = sorted(stop_ids) if params.min_tokens > 0 else []
        self._generator: torch.Generator | None = None
        if not self.greedy:
            self._generator = torch.Generator(device=device)
            seed = params.seed
            self._generator.manual_seed(
                int.from_bytes(os.urandom(8), "big") >> 1 if seed is None else seed
            )

    def withheld(self, generated: int) -> list[int]:
        """Token ids that may not be chosen now; ``generated`` tokens came before."""
        return self._withheld if generated < self._params.min_tokens else []

    @property
    def logprobs(self) -> int | None:
        """How many likeliest tokens it wants log-probabilities of; None: of none."""
        return self._params.logprobs

    def sample(self, logits: torch.Tensor) -> int:
        """One token id from ``[vocab]`` logits by temperature, then top_k, then top_p."""
        scaled = logits / min(self._params.temperature, FLAT_ABOVE)
        if self._params.top_k > 0:
            kth = torch.topk(scaled, min(self._params.top_k, scaled.numel())).values[-1]
            scaled = scaled.masked_fill(scaled < kth, float("-inf"))
        chances = torch.softmax(scaled, dim=-1)
        if self._params.top_p < 1:
            chances = _nucleus(chances, self._params.top_p)
        return int(torch.multinomial(chances, 1, generator=self._generator).item())


def _nucleus(chances: torch.Tensor, top_p: float) -> torch.Tensor:
    """Zero all but the smallest set of likeliest tokens whose chances reach ``top_p``."""
    ranked, order = torch.sort(chances, descending=True)
    # a token stays if what is likelier than it does not reach top_p yet
    dropped = torch.cumsum(ranked, dim=-1) - ranked >= top_p
    # the first has nothing before it, but a top_p below float32's least number is 0 here
    dropped[0] = False
    ranked[dropped] = 0
    return torch.zeros_like(chances).scatter_(0, order, ranked)


def choose_tokens(
    logits: torch.Tensor, samplers: Sequence[Sampler], generated: Sequence[int]
) -> list[int]:
    """A token id per row of ``[rows, vocab]`` float32 logits, which may be overwritten.

    ``generated`` is how many tokens each request has so far.
    """
    raw = raw_logprobs(logits, [sampler.logprobs for sampler in samplers])
    for row, (sampler, count) in enumerate(zip(samplers, generated, strict=True)):
        ids = sampler.withheld(count)
        if ids:
            logits[row, ids] = float("-inf")
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for row, sampler in enumerate(samplers):
        if not sampler.greedy:
            tokens[row] = sampler.sample(logits[row])
    for row, logprobs in raw.items():
        sampler = samplers[row]
        sampler.newest = token_logprobs(logprobs, tokens[row], sampler.logprobs or 0)
    return tokens
