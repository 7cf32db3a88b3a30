"""Bootstrap of one cell's figures: draws of whole blocks of requests, from a seed.

Requests of a closed loop resemble their neighbours: they are in flight together. So blocks of
requests that were sent one after the other are drawn with replacement (the block bootstrap:
Kuensch 1989), as long as one round of all users, but at least ten blocks to a cell. A drawn
request counts as often as its block was drawn; nothing is copied.
"""

from __future__ import annotations

import numpy as np

from harness.analysis.table import Bools, Floats, Ints
from harness.compare.types import Metric, Sample

DRAWS = 1000
METHOD = (
    f"95 % percentile interval of {DRAWS:,} bootstrap draws of blocks of requests in each run, "
    "the draws of both runs independent"
)
_LEAST_BLOCKS = 10
#: of draws x values that are worked on together: some 32 MiB
_MOST_AT_ONCE = 4 * 10**6


def draws_of(metric: Metric, sample: Sample, seed: tuple[int, ...]) -> Floats | None:
    """``DRAWS`` values of a metric, NaN where a draw has none; None where it has no interval.

    Of a rate they are relative to the measured one; of a percentile the smallest value that at
    least that share of the requests do not exceed.
    """
    generator = np.random.default_rng(seed)
    if metric.latency is not None and metric.p is not None:
        return _percentiles(sample, metric.latency, metric.p / 100.0, generator)
    if metric.name == "output_tokens_per_s":
        return _rates(sample, generator)
    if metric.name == "kv_bytes_per_token":
        return _bytes_per_token(sample, generator)
    return None


def _blocks(n: int, wanted: int) -> Ints:
    """The block of each of n neighbours, shape [n]."""
    size = min(max(1, wanted), max(1, n // _LEAST_BLOCKS))
    return np.arange(n, dtype=np.int64) // size


def _times_drawn(blocks: Ints, generator: np.random.Generator, draws: int = DRAWS) -> Floats:
    """How often each block is drawn, shape [draws, blocks]."""
    count = int(blocks[-1]) + 1
    return generator.multinomial(count, np.full(count, 1.0 / count), size=draws).astype(np.float64)


def _percentiles(
    sample: Sample, latency: str, share: float, generator: np.random.Generator
) -> Floats | None:
    values = sample.latency[latency]
    known: Bools = ~np.isnan(values)
    n = int(known.sum())
    if n < 2:
        return None
    blocks = _blocks(values.size, sample.users)[known]
    blocks = np.unique(blocks, return_inverse=True)[1]
    order = np.argsort(values[known], kind="stable")
    ranked, of = values[known][order], blocks[order]
    drawn = np.empty(DRAWS)
    step = max(1, _MOST_AT_ONCE // n)
    for start in range(0, DRAWS, step):
        stop = min(start + step, DRAWS)
        times = _times_drawn(blocks, generator, stop - start)
        passed = np.cumsum(times[:, of], axis=1)
        place = (passed < share * passed[:, -1:]).sum(axis=1)
        drawn[start:stop] = ranked[np.minimum(place, n - 1)]
    return drawn


def _rates(sample: Sample, generator: np.random.Generator) -> Floats | None:
    """Output tokens per second, relative to the measured rate.

    In a closed loop the users are given, so the rate is users x tokens / time taken (Little); in
    an open loop the arrivals are, and the tokens of a request make it.
    """
    n = sample.tokens.size
    if n < 2 or not sample.tokens.sum() > 0:
        return None
    blocks = _blocks(n, sample.users)
    times = _times_drawn(blocks, generator)
    tokens = times @ np.bincount(blocks, sample.tokens)
    if sample.loop == "closed":
        per = times @ np.bincount(blocks, np.nan_to_num(sample.taken_s))
        whole = float(np.nansum(sample.taken_s))
    else:
        per, whole = times @ np.bincount(blocks), float(n)
    if not whole > 0:
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((tokens / per) / (float(sample.tokens.sum()) / whole))


def _bytes_per_token(sample: Sample, generator: np.random.Generator) -> Floats | None:
    """Bytes in use over places for tokens; scrapes that follow each other drawn together."""
    m = sample.used_bytes.size
    if m < 2 or not sample.token_places.sum() > 0:
        return None
    blocks = _blocks(m, m // _LEAST_BLOCKS)
    times = _times_drawn(blocks, generator)
    used = times @ np.bincount(blocks, sample.used_bytes)
    held = times @ np.bincount(blocks, sample.token_places)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(used / held)
