"""Capacity under a distribution of request lengths, by seeded simulation.

The mean would promise too much: some draws of many requests need far more than n times
the mean. Safe is the largest n for which n random requests fit in 99 of 100 draws.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from harness.errors import OptionError, shortened

TRIALS, MIN_TRIALS = 2000, 200
#: draws over all trials, and in one: any pool answers within a second
MAX_DRAWS = 1_000_000
MAX_DRAWN = MAX_DRAWS // MIN_TRIALS
QUANTILE = 0.99
#: standard deviations of a normal distribution up to ``QUANTILE``
DEVIATIONS = 2.326348
#: no request has more tokens
MAX_TOKENS = 2**31


def parse_lengths(text: str, where: str) -> tuple[tuple[int, int], ...]:
    """Read one ``prompt output`` pair a line; blank lines and ``#`` comments are skipped.

    Raises OptionError that names the line.
    """
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        counts = [_tokens(word) for word in words]
        if len(counts) != 2 or min(counts) < 0 or counts[0] == 0:
            raise OptionError(
                "--lengths",
                line.strip(),
                f"'prompt output' in tokens, each up to 2^31 (line {number} of "
                f"{shortened(where, 120)})",
            )
        pairs.append((counts[0], counts[1]))
    if not pairs:
        raise OptionError("--lengths", where, "at least one line with 'prompt output' in tokens")
    return tuple(pairs)


def _tokens(word: str) -> int:
    """A count of tokens; -1 for what is none, or is out of all bounds."""
    if not word.isdecimal() or len(word) > len(str(MAX_TOKENS)) or int(word) > MAX_TOKENS:
        return -1
    return int(word)


def expected_requests(sizes: Sequence[int], budget: int, most: int | None = None) -> int:
    """Requests that fit on average, at most ``most``."""
    average = budget * len(sizes) // sum(sizes) + 1
    return average if most is None else min(average, most)


def is_simulated(sizes: Sequence[int], budget: int, most: int | None = None) -> bool:
    """Whether requests are drawn; beyond ``MAX_DRAWN`` per trial their sum is near normal."""
    return expected_requests(sizes, budget, most) <= MAX_DRAWN


def trials(sizes: Sequence[int], budget: int, most: int | None = None) -> int:
    """Trials of a simulation: fewer, but at least 200, where each takes many draws."""
    return max(MIN_TRIALS, min(TRIALS, MAX_DRAWS // expected_requests(sizes, budget, most)))


def safe_requests(
    sizes: Sequence[int], budget: int, *, seed: int = 0, most: int | None = None
) -> int:
    """The most requests, up to ``most``, whose sizes stay within ``budget`` in 99 % of draws.

    Each trial draws requests one by one until the budget is spent; what fits in a trial
    falls as its draws grow, so the answer is the 1st percentile of those counts. Where
    very many fit, the sum of n counts as normal instead (see ``is_simulated``).
    """
    if budget < min(sizes):
        return 0
    if min(sizes) == max(sizes):
        fit = budget // sizes[0]
        return fit if most is None else min(fit, most)
    if most is not None and most * max(sizes) <= budget:
        return most
    if not is_simulated(sizes, budget, most):
        fit = _normal(sizes, budget)
        return fit if most is None else min(fit, most)
    count = trials(sizes, budget, most)
    generator = random.Random(seed)  # noqa: S311 - a simulation, nothing secret
    # enough draws for most trials
    step = max(16, min(budget // min(sizes) + 1, expected_requests(sizes, budget, most) * 5 // 4))
    counts = sorted(_fitting(sizes, budget, generator, step, most) for _ in range(count))
    return counts[int(count * (1 - QUANTILE))]


def safe_padded(sizes: Sequence[int], budget: int, *, most: int | None = None) -> int:
    """The most requests, up to ``most``, that fit as a padded batch in 99 % of draws.

    A padded batch of n takes n times its longest request. With F(x) the share of sizes up
    to x, n random requests fit with probability F(budget / n)^n, which falls as n grows.
    """
    ordered = sorted(sizes)
    low, high = 0, budget // ordered[0] if most is None else min(most, budget // ordered[0])
    while low < high:
        middle = (low + high + 1) // 2
        share = bisect_right(ordered, budget // middle) / len(ordered)
        if share**middle >= QUANTILE:
            low = middle
        else:
            high = middle - 1
    return low


def _normal(sizes: Sequence[int], budget: int) -> int:
    """The largest n with n mean + z sqrt(n) deviation <= budget, z of the 99th percentile."""
    mean = sum(sizes) / len(sizes)
    spread = DEVIATIONS * float(sum((size - mean) ** 2 for size in sizes) / len(sizes)) ** 0.5
    root = float((spread**2 + 4 * mean * budget) ** 0.5 - spread) / (2 * mean)
    return int(root**2)


def _fitting(
    sizes: Sequence[int], budget: int, generator: random.Random, step: int, most: int | None
) -> int:
    """Requests of one trial that fit before the first that does not, at most ``most``."""
    count, spent = 0, 0
    while most is None or count < most:
        sums = list(accumulate(generator.choices(sizes, k=step), initial=spent))[1:]
        if sums[-1] > budget:
            count += bisect_right(sums, budget)
            break
        count, spent = count + step, sums[-1]
    return count if most is None else min(count, most)
