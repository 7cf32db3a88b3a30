"""Two predicted capacities of a running server, from its own facts and the lengths asked of it.

*Worst case*: all requests at full length at once. *Steady state*: each somewhere on its way
(``harness.kv.steady_capacity``). Requests that start together and are equally long stay in step,
and the worst case comes true; with many lengths, or arrivals of their own, they do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.kv.capacity import Capacity, ceil_div, predicted_capacity
from harness.kv.lengths import QUANTILE, safe_padded, safe_requests
from harness.kv.modes import CacheMode, read_mode
from harness.kv.reserve import reserved_tokens
from harness.kv.steady_capacity import (
    Steady,
    growing_demand,
    reserved_demand,
    steady_padded,
    steady_requests,
    steady_text,
)
from harness.kv.units import counted

if TYPE_CHECKING:
    from harness.manifest import BackendInfo

#: lengths (prompt, output) in tokens, and how many requests have them
LengthCounts = Mapping[tuple[int, int], int]
#: lengths that are drawn from at most; of more, an even share of each is taken
_MOST_DRAWN = 10_000


@dataclass(frozen=True)
class Predicted:
    """What a server should hold, of the same requests, twice."""

    worst: Capacity
    steady: Capacity


def predict(info: BackendInfo, lengths: LengthCounts) -> Predicted | None:
    """Both capacities; None when a fact is missing, or there is no length.

    A paged pool is taken for that of one group of layers, as in ``predicted_capacity``.
    """
    fitting = {
        pair: times
        for pair, times in lengths.items()
        if info.max_model_len is None or sum(pair) <= info.max_model_len
    }
    if not fitting:
        pair = max(lengths, default=None)
        none = predicted_capacity(info, *pair) if pair is not None else None
        return Predicted(none, none) if none is not None else None
    longest = max(fitting, key=sum)
    plain = predicted_capacity(info, *longest)
    if plain is None:
        return None
    mode = read_mode(info.mode) if info.kind == "contiguous" else None
    steady = _steady(info, mode, fitting)
    if len(fitting) == 1:
        return Predicted(plain, steady)
    return Predicted(_worst(info, mode, fitting), steady)


def _steady(info: BackendInfo, mode: CacheMode | None, lengths: LengthCounts) -> Capacity:
    if mode is None:
        block = info.block_size or 1
        demand = growing_demand(lengths, lambda tokens: ceil_div(tokens, block), block)
        usable = max(0, (info.num_blocks or 0) - 1)
        found = steady_requests(demand, usable)
        return _limited(info, mode, found, steady_text(found, usable, "blocks"))
    budget = _tokens(info)
    demand = reserved_demand(lengths, lambda tokens: _reserved(info, mode, tokens))
    padded = mode.cache == "dynamic"
    found = (steady_padded if padded else steady_requests)(demand, budget)
    return _limited(info, mode, found, steady_text(found, budget, "tokens", padded=padded))


def _worst(info: BackendInfo, mode: CacheMode | None, lengths: LengthCounts) -> Capacity:
    """Of many lengths: the most that fit in 99 % of random draws, all at full length."""
    pairs = _thinned(lengths)
    if mode is None:
        block = info.block_size or 1
        sizes = [ceil_div(sum(pair), block) for pair in pairs]
        budget, unit = max(0, (info.num_blocks or 0) - 1), "blocks"
    else:
        sizes = [_reserved(info, mode, sum(pair)) for pair in pairs]
        budget, unit = _tokens(info), "tokens"
    padded = mode is not None and mode.cache == "dynamic"
    fit = safe_padded(sizes, budget) if padded else safe_requests(sizes, budget)
    rule = "number x longest" if padded else "sum"
    step = (
        f"worst case = the most requests of {counted(len(lengths), 'different length')}, all at "
        f"full length, whose {rule} stays within {budget:,} {unit} in {QUANTILE:.0%} of draws = "
        f"{fit:,}"
    )
    return _limit(info, mode, fit, (step,))


def _thinned(lengths: LengthCounts) -> list[tuple[int, int]]:
    pairs = sorted(Counter(lengths).elements())
    return pairs[:: max(1, len(pairs) // _MOST_DRAWN)]


def _tokens(info: BackendInfo) -> int:
    """Tokens that a contiguous server's budget pays for."""
    return (info.kv_budget_bytes or 0) // (info.kv_bytes_per_token or 1)


def _reserved(info: BackendInfo, mode: CacheMode, tokens: int) -> int:
    if mode.cache == "dynamic":
        return tokens
    return reserved_tokens(mode.reserve, tokens, info.max_model_len or tokens)


def _limited(
    info: BackendInfo, mode: CacheMode | None, found: Steady, steps: tuple[str, ...]
) -> Capacity:
    return _limit(info, mode, found.requests, steps)


def _limit(info: BackendInfo, mode: CacheMode | None, fit: int, steps: tuple[str, ...]) -> Capacity:
    """The scheduler's own limits, each as a step where it decides."""
    if info.max_num_seqs is not None and fit > info.max_num_seqs:
        steps += (
            f"requests = min({fit:,}, max_num_seqs {info.max_num_seqs:,}) = {info.max_num_seqs:,}",
        )
        fit = info.max_num_seqs
    if mode is not None and mode.batching == "none" and fit > 1:
        steps += (f"batching none: min({fit:,}, 1 at a time) = 1",)
        fit = 1
    return Capacity(fit, steps)
