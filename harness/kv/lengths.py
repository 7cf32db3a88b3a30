"""Capacity under a distribution of request lengths, by seeded simulation.

The mean would promise too much: some draws of many requests need far more than n times
the mean. Safe is the largest n for which n random requests fit in 99 of 100 draws.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from harness.errors import OptionError

TRIALS = 2000
#: draws over all trials, so that very large pools answer in seconds too
MAX_DRAWS = 8_000_000
QUANTILE = 0.99


def parse_lengths(text: str, where: str) -> tuple[tuple[int, int], ...]:
    """Read one ``prompt output`` pair a line; blank lines and ``#`` comments are skipped.

    Raises OptionError that names the line.
    """
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words) or words[0] == "0":
            raise OptionError(
                "--lengths", f"{where}, line {number}: {line.strip()}", "'prompt output' in tokens"
            )
        pairs.append((int(words[0]), int(words[1])))
    if not pairs:
        raise OptionError("--lengths", where, "at least one line with 'prompt output' in tokens")
    return tuple(pairs)


def trials_for(sizes: Sequence[int], budget: int) -> int:
    """Trials of a simulation: fewer, but at least 200, where each takes very many draws."""
    expected = budget * len(sizes) // sum(sizes) + 1
    return max(200, min(TRIALS, MAX_DRAWS // expected))


def safe_requests(sizes: Sequence[int], budget: int, *, seed: int = 0) -> int:
    """The most requests whose summed ``sizes`` stay within ``budget`` in 99 % of the draws.

    Each trial draws requests one by one until the budget is spent; what fits in a trial
    falls as its draws grow, so the answer is the 1st percentile of those counts.
    """
    if budget < min(sizes):
        return 0
    trials = trials_for(sizes, budget)
    generator = random.Random(seed)  # noqa: S311 - a simulation, nothing secret
    # enough draws for any trial: the smallest size repeated
    step = max(16, min(budget // min(sizes) + 1, 2 * budget * len(sizes) // sum(sizes) + 1))
    counts = sorted(_fitting(sizes, budget, generator, step) for _ in range(trials))
    return counts[int(trials * (1 - QUANTILE))]


def _fitting(sizes: Sequence[int], budget: int, generator: random.Random, step: int) -> int:
    """Requests of one trial that fit before the first that does not."""
    count, spent = 0, 0
    while True:
        sums = list(accumulate(generator.choices(sizes, k=step), initial=spent))[1:]
        if sums[-1] > budget:
            return count + bisect_right(sums, budget)
        count, spent = count + step, sums[-1]
