"""How many requests a pool holds in steady state: each somewhere between its prompt and its end.

Worst case and steady state differ because vLLM admits a request on what it needs now and lets it
grow. A request of p prompt and o output tokens holds blocks for p, p + 1, ... p + o - 1 tokens,
one step each: the K and V of the last token are never written. When the requests in flight are
at independent moments of that walk (out of step), their sum is narrow around its mean, and more
of them fit than if all stood at their last token at once. Long answers are in flight longer, so
among those in flight they are more frequent than among those sent.

Steady is the largest n for which n such requests need more than the pool in at most 1 % of the
time: then one waits or is preempted. The share of time is computed, not drawn: the tail of a sum
of n independent whole numbers by the saddlepoint method (Lugannani and Rice 1980, with Daniels'
1987 correction for a lattice), whose error is some percent of the share itself. No numpy: a plan
must be quick.

A layout that reserves when a request starts does not grow. There only the lengths count.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.kv.capacity import ceil_div
from harness.kv.units import counted

#: Share of the time in which the requests may need more than the pool has.
OVERFLOW = 0.01
#: how near the mean of the sum the formula is replaced by its limit
_NEAR = 1e-6
_STEPS = 100


@dataclass(frozen=True)
class Demand:
    """What one request in flight needs: whole units (blocks, bytes), each with its share of time.

    ``sizes`` rise; ``shares`` add up to 1.
    """

    sizes: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Units on average over time."""
        return sum(size * share for size, share in zip(self.sizes, self.shares, strict=True))

    @property
    def variance(self) -> float:
        """Of the units over time."""
        mean = self.mean
        return sum(
            (size - mean) ** 2 * share for size, share in zip(self.sizes, self.shares, strict=True)
        )


@dataclass(frozen=True)
class Steady:
    """Requests that fit while they are out of step."""

    requests: int
    #: share of the time in which so many need more than there is, and one more
    overflow: float
    overflow_of_next: float
    demand: Demand


def growing_demand(
    pairs: Iterable[tuple[int, int]], blocks_of: Callable[[int], int], block_size: int
) -> Demand:
    """Blocks of a request that grows; ``pairs`` are (prompt, output) in tokens, or
    a mapping from them to how many requests have them.

    ``blocks_of`` gives the blocks of so many tokens and changes at multiples of ``block_size``
    alone. Each step of a request counts alike.
    """
    weights: Counter[int] = Counter()
    known: dict[int, int] = {}
    for (prompt, output), times in Counter(pairs).items():
        first, last = prompt, prompt + max(output, 1) - 1
        for place in range(ceil_div(first, block_size), ceil_div(last, block_size) + 1):
            if place not in known:
                known[place] = blocks_of(place * block_size)
            most, least = min(last, place * block_size), max(first, (place - 1) * block_size + 1)
            weights[known[place]] += (most - least + 1) * times
    return _demand(weights)


def reserved_demand(pairs: Iterable[tuple[int, int]], size_of: Callable[[int], int]) -> Demand:
    """What a request reserves from its start to its end: ``size_of`` prompt + output tokens."""
    weights: Counter[int] = Counter()
    for (prompt, output), times in Counter(pairs).items():
        weights[size_of(prompt + output)] += max(output, 1) * times
    return _demand(weights)


def _demand(weights: Mapping[int, int]) -> Demand:
    total = sum(weights.values())
    sizes = tuple(sorted(weights))
    return Demand(sizes, tuple(weights[size] / total for size in sizes))


def steady_requests(
    demand: Demand, budget: int, *, most: int | None = None, overflow: float = OVERFLOW
) -> Steady:
    """The most requests, up to ``most``, that need more than ``budget`` in so little of the time.

    Raises ValueError for a demand of nothing.
    """
    if demand.sizes[-1] < 1:
        raise ValueError("requests that need nothing")
    low, high = 0, budget // max(1, demand.sizes[0])
    if most is not None:
        high = min(high, most)
    while low < high:
        middle = (low + high + 1) // 2
        if overflow_share(demand, middle, budget) <= overflow:
            low = middle
        else:
            high = middle - 1
    return Steady(
        low,
        overflow_share(demand, low, budget),
        overflow_share(demand, low + 1, budget),
        demand,
    )


def steady_padded(
    demand: Demand, budget: int, *, most: int | None = None, overflow: float = OVERFLOW
) -> Steady:
    """As ``steady_requests`` for a padded batch: n requests take n x the longest of them.

    With F(x) the share up to x, n fit with probability F(budget / n)^n.
    """

    def over(n: int) -> float:
        if n == 0:
            return 0.0
        fits = sum(
            share
            for size, share in zip(demand.sizes, demand.shares, strict=True)
            if size * n <= budget
        )
        return 1.0 - min(1.0, fits) ** n

    top = budget // max(1, demand.sizes[0])
    if most is not None:
        top = min(top, most)
    # how often they do not fit rises with n
    least = bisect_left(range(top + 1), True, key=lambda n: over(n) > overflow + 1e-12)
    held = max(0, least - 1)
    return Steady(held, over(held), over(held + 1), demand)


def overflow_share(demand: Demand, requests: int, budget: int) -> float:
    """P(the sum of ``requests`` independent demands > ``budget``), from 0 to 1."""
    if requests * demand.sizes[-1] <= budget:
        return 0.0
    if requests * demand.sizes[0] > budget:
        return 1.0
    step = math.gcd(*(size - demand.sizes[0] for size in demand.sizes[1:]))
    # on the lattice of possible sums; the tail begins at the first sum above the budget
    first = ((budget - requests * demand.sizes[0]) // step + 1) * step
    top = demand.sizes[-1] - demand.sizes[0]
    if first == requests * top:
        return demand.shares[-1] ** requests
    return _tail(demand, requests, first, step)


def _tail(demand: Demand, n: int, first: int, step: int) -> float:
    """P(sum of n excesses over the smallest demand >= ``first``), by the saddlepoint method."""
    steps = [(size - demand.sizes[0]) // step for size in demand.sizes]
    shares = demand.shares
    # Daniels' second correction: the point lies half a lattice step below
    wanted = (first / step - 0.5) / n
    slope = _saddle(steps, shares, wanted)
    log_sum, _, spread = _cumulants(steps, shares, slope)
    exponent = n * (slope * wanted - log_sum)
    w = math.copysign(math.sqrt(max(0.0, 2.0 * exponent)), slope)
    u = 2.0 * math.sinh(slope / 2.0) * math.sqrt(n * spread)
    if abs(w) < _NEAR or abs(u) < _NEAR:
        return 0.5
    density = math.exp(-w * w / 2.0) / math.sqrt(2.0 * math.pi)
    tail = 0.5 * math.erfc(w / math.sqrt(2.0)) + density * (1.0 / u - 1.0 / w)
    return min(1.0, max(0.0, tail))


def _saddle(steps: Sequence[int], shares: Sequence[float], wanted: float) -> float:
    """Where the slope of the cumulant function is ``wanted``: it rises."""
    low, high = -1.0, 1.0
    while _cumulants(steps, shares, high)[1] < wanted:
        high *= 2.0
    while _cumulants(steps, shares, low)[1] > wanted:
        low *= 2.0
    slope = 0.0
    for _ in range(_STEPS):
        _, mean, spread = _cumulants(steps, shares, slope)
        low, high = (slope, high) if mean < wanted else (low, slope)
        if abs(mean - wanted) <= 1e-12 * steps[-1]:
            break
        # Newton's step, or half the way where it would leave the bracket
        slope = slope + (wanted - mean) / spread if spread > 0 else low
        if not low < slope < high:
            slope = (low + high) / 2.0
    return slope


def _cumulants(
    steps: Sequence[int], shares: Sequence[float], slope: float
) -> tuple[float, float, float]:
    """(log of the moment function, its first and second derivative) at ``slope``."""
    peak = max(slope * steps[0], slope * steps[-1])
    weights = [
        share * math.exp(slope * step - peak) for step, share in zip(steps, shares, strict=True)
    ]
    total = sum(weights)
    mean = sum(step * weight for step, weight in zip(steps, weights, strict=True)) / total
    square = sum(step * step * weight for step, weight in zip(steps, weights, strict=True)) / total
    return math.log(total) + peak, mean, max(0.0, square - mean * mean)


def steady_text(steady: Steady, budget: int, unit: str, *, padded: bool = False) -> tuple[str, ...]:
    """The working of a steady capacity, in words with its numbers; ``unit`` is ``blocks`` or B."""
    demand, n = steady.demand, steady.requests
    least, most, mean = demand.sizes[0], demand.sizes[-1], demand.mean
    of = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    first = f"a request in flight takes {of} {unit}, {mean:,.2f} on average over its time"
    over = (
        f"more than {budget:,} in {_percent(steady.overflow)} of the time; {n + 1:,} would in "
        f"{_percent(steady.overflow_of_next)} (at most {OVERFLOW:.0%} is taken)"
    )
    if padded:
        return (first, f"steady = {counted(n, 'request')} of random lengths, padded, take {over}")
    deviation = math.sqrt(n * demand.variance)
    return (
        f"{first}: {budget:,} / {mean:,.2f} = {budget / mean:,.1f} requests on average",
        f"steady = {counted(n, 'request')} out of step: {n * mean:,.1f} +- {deviation:,.1f} "
        f"{unit}, {over}",
    )


def _percent(share: float) -> str:
    if share in (0.0, 1.0):
        return f"{share * 100:.0f} %"
    if share < 1e-4:
        return "under 0.01 %"
    return f"{share * 100:.2g} %" if share < 0.1 else f"{min(99.0, share * 100):.0f} %"
