"""How sure the latency and the throughput knee are. Pure.

Latency: a share of n requests, with Wilson's interval (Wilson 1927), which stays within 0 and 1
and holds for small n and for shares near 1.

Throughput: requests are drawn again within their level, seeded. In a closed loop the rate of n
users is n x tokens / (time from one request of a user to its next), so each draw gives a rate.
Requests sent next to each other share the server's slow moments: blocks of as many as there are
users are drawn, five blocks at least, and few blocks are widened by Student's t. In simulated
closed loops of five turns the interval held the true rate in 90 of 100 cases where requests vary
by themselves, and in 50 to 80 where all of them slow down together for two turns at a time: a
window that short sees two or three such moments, and repeats are what shows them. The gain per
doubling between two levels is a ratio of two such rates; of several repeats the scatter between
them counts where it is larger.

A level whose interval holds the threshold is *undecided*. The rules of the knees stay as they
are: they name the likeliest level, and the interval says how likely it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.confidence_types import Bracket, LevelInterval, LevelState, RequestSpread
from harness.analysis.drift import student
from harness.analysis.fit_types import Interval
from harness.analysis.summary_types import CellFigures, Window
from harness.analysis.table import CANCELLED, Bools, CellTable, Floats, Ints
from harness.analysis.throughput import output_tokens
from harness.plan.proportions import Z_95, wilson

DRAWS = 500
LEAST_BLOCKS, MOST_BLOCKS = 5, 500
_SEED = 1993


def share_interval(met: int, n: int) -> Interval:
    """A share of ``n`` requests, with Wilson's interval; raises ValueError without requests."""
    if n < 1:
        raise ValueError("a share of no requests")
    share = met / n
    low, high = wilson(share, n)
    # at the ends rounding would leave the share out
    return Interval(share, min(share, low), max(share, high))


def request_spread(
    table: CellTable, window: Window, counted: Bools, attained: float | None
) -> RequestSpread:
    """What drawing the counted requests of one cell again says; ``attained``: share that met."""
    ended = counted & (table.outcome != CANCELLED)
    n = int(ended.sum())
    met = None if attained is None else round(attained * n)
    if window.by_schedule or n < LEAST_BLOCKS:
        return RequestSpread(None, 0, n, met)
    rows = np.flatnonzero(ended)
    rows = rows[np.argsort(table.reference_s[rows], kind="stable")]
    tokens = np.where(table.ok, output_tokens(table), 0)[rows].astype(np.float64)
    cycles = _cycles_s(table)[rows]
    blocks = int(np.clip(n // max(1, window.users), min(n, LEAST_BLOCKS), MOST_BLOCKS))
    starts = np.linspace(0, n, blocks, endpoint=False).astype(np.int64)
    return RequestSpread(_rate_spread(tokens, cycles, starts), blocks, n, met)


def _rate_spread(tokens: Floats, cycles_s: Floats, starts: Ints) -> float | None:
    """Error of sum(tokens) / sum(cycles) over its value, of blocks drawn again.

    ``Z_95`` times it is half of the interval of 95 %.
    """
    sums = np.stack([np.add.reduceat(tokens, starts), np.add.reduceat(cycles_s, starts)])
    if not sums.sum(axis=1).min() > 0:
        return None
    count = starts.size
    generator = np.random.default_rng(_SEED)
    times = generator.multinomial(count, np.full(count, 1.0 / count), size=DRAWS)
    drawn = times @ sums.T
    logs = np.log(drawn[(drawn > 0).all(axis=1)])
    # few blocks show too little spread, by (n - 1) / n of its square, and are not sure of it
    few = math.sqrt(count / (count - 1)) * student(count - 1) / Z_95
    return float(np.std(logs[:, 0] - logs[:, 1]) * few)


def _cycles_s(table: CellTable) -> Floats:
    """From each request to its user's next one, or to its own end when it was the last."""
    sent = table.reference_s
    order = np.lexsort((sent, table.user))
    cycles = table.end_s - sent
    same = table.user[order][1:] == table.user[order][:-1]
    cycles[order[:-1][same]] = np.diff(sent[order])[same]
    return np.asarray(cycles, dtype=np.float64)


def state_of(interval: Interval, threshold: float) -> LevelState:
    """Good when all of the interval reaches the threshold, bad when none of it does."""
    if interval.low >= threshold:
        return "good"
    return "bad" if interval.high < threshold else "undecided"


def latency_intervals(cells: Sequence[CellFigures], threshold: float) -> list[LevelInterval]:
    """One for each judged cell that was asked to meet an SLO."""
    found = []
    for figures in cells:
        spread = figures.spread
        if figures.unjudged is None and spread is not None and spread.met is not None and spread.n:
            interval = share_interval(spread.met, spread.n)
            state = state_of(interval, threshold)
            level = figures.cell.level
            found.append(LevelInterval("latency", level, interval, threshold, spread.n, state))
    return found


def rate_of(cells: Sequence[CellFigures]) -> tuple[float, float | None, int] | None:
    """Of one level's judged repeats: mean output tokens/s, its relative error, blocks drawn."""
    usable = [c for c in cells if c.unjudged is None and c.throughput.output_tokens_per_s]
    rates = np.array([c.throughput.output_tokens_per_s for c in usable], dtype=np.float64)
    if not rates.size:
        return None
    own = [c.spread.rate for c in usable if c.spread is not None and c.spread.rate is not None]
    within = None
    if len(own) == rates.size:
        within = math.sqrt(sum(s * s for s in own)) / rates.size
        if rates.size > 1:
            between = float(np.std(rates, ddof=1) / rates.mean()) / math.sqrt(rates.size)
            within = max(within, between)
    return float(rates.mean()), within, sum(c.spread.blocks for c in usable if c.spread)


def gain_interval(before: tuple[float, float, float], here: tuple[float, float, float]) -> Interval:
    """Gain per doubling between two levels, each (level, rate, relative error of the rate)."""
    doublings = math.log2(here[0] / before[0])
    ratio = math.log(here[1] / before[1])
    half = Z_95 * math.hypot(before[2], here[2])
    middle, low, high = (math.expm1((ratio + x) / doublings) for x in (0.0, -half, half))
    return Interval(middle, low, high)


def throughput_intervals(
    groups: Sequence[tuple[float, Sequence[CellFigures]]], threshold: float
) -> list[LevelInterval]:
    """One for each level but the first whose gain over the one before is known."""
    found = []
    before: tuple[float, float, float] | None = None
    for level, cells in groups:
        rate = rate_of(cells)
        if rate is None:
            continue
        if rate[1] is None:
            before = None
            continue
        here = (level, rate[0], rate[1])
        if before is not None:
            gain = gain_interval(before, here)
            state = state_of(gain, threshold)
            found.append(LevelInterval("throughput", level, gain, threshold, rate[2], state))
        before = here
    return found


def sure_bracket(intervals: Sequence[LevelInterval]) -> Bracket | None:
    """What the intervals of one knee leave no doubt of; None without any."""
    if not intervals:
        return None
    bad = min((item.level for item in intervals if item.state == "bad"), default=None)
    below = math.inf if bad is None else bad
    good = [item.level for item in intervals if item.state == "good" and item.level < below]
    return Bracket(intervals[0].knee, max(good, default=None), bad)
