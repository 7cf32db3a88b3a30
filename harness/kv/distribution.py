"""The requests in question when lengths are given as a distribution: what they are, and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.errors import OptionError
from harness.kv.layouts import Costs, LayoutName
from harness.kv.lengths import (
    QUANTILE,
    is_simulated,
    safe_padded,
    safe_requests,
    trials,
)
from harness.kv.units import counted, exact

#: a 99th percentile of fewer values is hardly more than the largest: 5 / (1 - 0.99)
LEAST_FOR_P99 = 500


@dataclass(frozen=True)
class Spread:
    """A distribution in five figures; ``p99`` is None below ``LEAST_FOR_P99`` values."""

    least: int
    mean: float
    median: float
    p99: float | None
    most: int


@dataclass(frozen=True)
class LengthSummary:
    """Given lengths, without those that exceed the longest context in force."""

    source: str
    #: lengths that count, and those that the server would refuse
    requests: int
    left_out: int
    prompt_tokens: Spread
    output_tokens: Spread
    tokens: Spread
    #: of one request, for the layout in question
    needed_bytes: Spread
    reserved_bytes: Spread


@dataclass(frozen=True)
class Lengths:
    """Lengths from which random requests are drawn."""

    source: str
    pairs: tuple[tuple[int, int], ...]
    left_out: int
    seed: int
    #: most requests at once, when the user set it
    most: int | None

    @property
    def totals(self) -> list[int]:
        """Prompt and output together."""
        return [prompt + output for prompt, output in self.pairs]


def kept_lengths(
    pairs: Sequence[tuple[int, int]], longest: int, *, source: str, seed: int, most: int | None
) -> Lengths:
    """Leave out what exceeds ``longest`` tokens; raises OptionError when nothing is left."""
    kept = tuple(pair for pair in pairs if sum(pair) <= longest)
    if not kept:
        raise OptionError(
            "--lengths", min(sum(pair) for pair in pairs), f"lengths up to {longest:,} tokens"
        )
    return Lengths(source, kept, len(pairs) - len(kept), seed, most)


def summary(lengths: Lengths, price: Costs, layout: LayoutName) -> LengthSummary:
    """What the lengths are, and what one request of them costs."""
    totals = lengths.totals
    return LengthSummary(
        source=lengths.source,
        requests=len(totals),
        left_out=lengths.left_out,
        prompt_tokens=_spread([prompt for prompt, _ in lengths.pairs]),
        output_tokens=_spread([output for _, output in lengths.pairs]),
        tokens=_spread(totals),
        needed_bytes=_whole(_spread(_each(totals, price.needed))),
        reserved_bytes=_whole(_spread(reserved(lengths, price, layout))),
    )


def reserved(lengths: Lengths, price: Costs, layout: LayoutName) -> list[int]:
    """Bytes that the layout sets aside for each length."""
    return _each(lengths.totals, lambda tokens: price.reserved(layout, tokens))


def peaks(lengths: Lengths, price: Costs, layout: LayoutName) -> list[int]:
    """As ``reserved``, with the copy that ``dynamic`` makes for a moment."""
    return _each(lengths.totals, lambda tokens: price.peak(layout, tokens))


def mean(values: Sequence[int]) -> int:
    """The mean, rounded to whole bytes."""
    return round(sum(values) / len(values))


def safe_count(lengths: Lengths, price: Costs, layout: LayoutName, pool: int) -> int:
    """The most random requests that fit the pool in 99 % of draws."""
    if layout == "dynamic":
        return safe_padded(reserved(lengths, price, layout), pool, most=lengths.most)
    _, sizes, budget = _drawn(lengths, price, layout, pool)
    return safe_requests(sizes, budget, seed=lengths.seed, most=lengths.most)


def safe_with_copy(lengths: Lengths, price: Costs, layout: LayoutName, pool: int) -> int | None:
    """As ``safe_count``, with the copy that ``dynamic`` makes; None for other layouts."""
    if layout != "dynamic":
        return None
    return safe_padded(peaks(lengths, price, layout), pool, most=lengths.most)


def safe_steps(
    lengths: Lengths, price: Costs, layout: LayoutName, pool: int
) -> tuple[int, list[str]]:
    """``safe_count``, and how it comes about."""
    fit = safe_count(lengths, price, layout, pool)
    unit, sizes, budget = _drawn(lengths, price, layout, pool)
    limit = f", up to max_num_seqs {lengths.most:,}," if lengths.most is not None else ""
    steps = []
    if layout == "paged":
        block = price.paged.block_bytes
        steps.append(f"usable blocks = floor({pool:,} B / {block:,} B) - 1 null block = {budget:,}")
    average = sum(sizes) / len(sizes)
    steps.append(
        f"{counted(len(sizes), 'length')}, mean {average:,.1f} {unit} per request: "
        f"{budget:,} {unit} / mean = {budget / average:,.1f} requests on average, which is not safe"
    )
    if layout == "dynamic":
        steps.append(
            "the contiguous server pads its batch: n requests take n x the longest of them, and "
            "are admitted while that fits"
        )
        rule, how = "whose number x longest", "draws (computed, none is simulated)"
    else:
        rule, how = "whose sum", _how(lengths, sizes, budget)
    steps.append(
        f"safe = the most random requests{limit} {rule} stays within {budget:,} {unit} in "
        f"{QUANTILE:.0%} of {how} = {fit:,}"
    )
    if layout == "dynamic":
        copied = safe_with_copy(lengths, price, layout, pool)
        most = max(peaks(lengths, price, layout))
        steps.append(
            f"while torch.cat copies one layer's K, the longest request peaks at {exact(most)}: "
            f"safe with the copy, likewise = {copied:,}"
        )
    return fit, steps


def _how(lengths: Lengths, sizes: Sequence[int], budget: int) -> str:
    if min(sizes) == max(sizes):
        return "draws (all alike, none is simulated)"
    if is_simulated(sizes, budget, lengths.most):
        return f"{trials(sizes, budget, lengths.most):,} draws (seed {lengths.seed})"
    return "draws (so many fit that their sum counts as normal, none is simulated)"


def _drawn(
    lengths: Lengths, price: Costs, layout: LayoutName, pool: int
) -> tuple[str, list[int], int]:
    """The unit that requests are counted in, each length's size in it, and the pool's."""
    if layout != "paged":
        return "B", reserved(lengths, price, layout), pool
    budget = max(0, pool // price.paged.block_bytes - 1)
    sizes = _each(
        lengths.totals, lambda tokens: price.paged.blocks_per_request(tokens, price.engine)
    )
    return "blocks", sizes, budget


def _each(totals: Sequence[int], of: Callable[[int], int]) -> list[int]:
    """``of`` every length, computed once for equal ones: a trace has many."""
    known = {total: of(total) for total in set(totals)}
    return [known[total] for total in totals]


def _spread(values: Sequence[int]) -> Spread:
    ordered = sorted(values)
    p99 = _quantile(ordered, 0.99) if len(ordered) >= LEAST_FOR_P99 else None
    average = sum(ordered) / len(ordered)
    return Spread(ordered[0], average, _quantile(ordered, 0.5), p99, ordered[-1])


def _whole(spread: Spread) -> Spread:
    """Bytes are whole numbers."""
    p99 = None if spread.p99 is None else round(spread.p99)
    return Spread(spread.least, round(spread.mean), round(spread.median), p99, spread.most)


def _quantile(ordered: Sequence[int], share: float) -> float:
    """Linear interpolation between the two nearest values."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
