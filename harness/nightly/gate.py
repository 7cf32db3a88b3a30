"""Has it become worse since last night? One verdict for each cell and metric. Pure.

**What is asked.** Tonight's figure y is the mean of its repeats. Between nights a figure moves
by more than its repeats say (another boot, temperature, neighbours), so the question is whether
y could be one more night of the baseline: a *prediction* interval, not a confidence interval.
With N nights of mean m and standard deviation s, and t of Student's distribution with the
degrees of freedom of s,

    y is clear when  |y - m| > t * s * sqrt(1 + 1/N)

where s already holds both kinds of noise: var(y) = between-night + within-night / repeats.
Ratios are compared as logarithms, so a spread is relative and a third worse is as far as a
third better is back; shares that may be zero (failure rate) are compared by difference.

**How strict.** With G gated series and a rate a per night (1 %), each has a / G (Bonferroni; no
independence assumed). Holm's steps would gain nothing: they loosen the second verdict, and one
alarm fails the night already. Only "worse" is an alarm, so the tail is one-sided. Of a, 90 % are
spent on tonight's figure, 5 % on the mean of the last three nights against those before them
(it finds what is just too small for one night), 5 % are kept for what is approximate here:
clipped nights and estimated degrees of freedom.

**Why 90 nights.** At a within-night CV of 5 %, five repeats and a between-night CV of 1 % a night
has s = sqrt(5^2/5 + 1) = 2.45 %, and a regression of 10 % is log(1.1)/s = 3.9 s. Bonferroni over
8 series at 1 % costs 3.0 s even with s known exactly: found in 81 % of nights at best. With 14
nights and nothing else known t is 3.8, found in half. Each figure's s is therefore steadied by
its family's (``harness.nightly.spread``) and the baseline is long; a short one works and sees
less, which ``harness.nightly.sight`` tells. ``python -m tests.nightly.gate_table`` measures both
errors on simulated nights.

**What else must hold.** The change is beyond both of the metric's floors, and the bootstrap over
tonight's repeats (seeded) leaves zero outside its 95 % interval. Where tonight's repeats scatter
four times as much as the baseline's do, or no regression of half would be seen, the answer is
``unstable``. A missing figure is ``insufficient samples``, never zero.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.nightly.gate_types import NOTHING, GateLimits, Reading, Series, Verdict, VerdictName
from harness.nightly.metrics import Metric
from harness.nightly.quantiles import t_quantile
from harness.nightly.spread import Spread, robust_spread, steadied

_DRAWS = 500
#: tonight's repeats against the baseline's, in standard deviations
_WILD = 4.0
#: the window's test needs so many nights before it
_WINDOW_BASELINE = 10


def judge(series: Sequence[Series], limits: GateLimits) -> tuple[Verdict, ...]:
    """A verdict for each series, in their order.

    Raises ValueError when more than ``limits.max_gated`` of them are gated.
    """
    gated = sum(item.gated for item in series)
    if gated > limits.max_gated:
        raise ValueError(f"{gated} series are gated; at most {limits.max_gated} may be")
    spreads = [_spread(item, limits) for item in series]
    family = [
        i
        for i, (item, spread) in enumerate(zip(series, spreads, strict=True))
        if item.gated and spread is not None and not item.metric.is_share
    ]
    calmed = steadied([s for i in family if (s := spreads[i]) is not None])
    for i, spread in zip(family, calmed, strict=True):
        spreads[i] = spread
    tail = limits.false_alarm_rate / max(gated, 1)
    return tuple(
        _verdict(item, spread, tail, limits) for item, spread in zip(series, spreads, strict=True)
    )


def scale(metric: Metric, value: float) -> float:
    """``value`` as it is compared: its logarithm, or itself for a share."""
    return value if metric.is_share else math.log(max(value, NOTHING))


def scaled(metric: Metric, reading: Reading) -> float:
    """A reading's figure as it is compared."""
    return reading.value if metric.is_share else reading.log_value


def worse_change(metric: Metric, moved: float) -> float:
    """A difference for the worse (positive) on the compared scale, as a share of the baseline."""
    if metric.is_share:
        return moved
    if metric.better == "lower":
        return _share_of(moved)
    return -_share_of(-moved)


def threshold(spread: Spread, metric: Metric, tail: float, mean_of: int = 1) -> float:
    """The change for the worse that is clear at that tail probability, on the compared scale."""
    noise = spread.sd * math.sqrt(1.0 / mean_of + 1.0 / spread.nights)
    return max(t_quantile(tail, spread.df) * noise, _floor(metric, spread.centre))


def _floor(metric: Metric, centre: float) -> float:
    """Both floors on the compared scale; infinite when a rate cannot fall so far."""
    if metric.is_share:
        return max(metric.relative_floor * centre, metric.absolute_floor)
    share = max(metric.relative_floor, metric.absolute_floor / math.exp(centre))
    if metric.better == "lower":
        return math.log1p(share)
    return -math.log1p(-share) if share < 1.0 else math.inf


def _values(series: Series) -> NDArray[np.float64]:
    return np.array([scaled(series.metric, item) for item in series.baseline])


def _spread(series: Series, limits: GateLimits) -> Spread | None:
    """Of the last N nights; None with too few of them."""
    values = _values(series)[-limits.baseline_nights :]
    if values.size < max(limits.min_nights, 2):
        return None
    return with_counting_noise(series, robust_spread(values))


def with_counting_noise(series: Series, spread: Spread) -> Spread:
    """A share's spread, at least that of counting so many requests (binomial)."""
    requests = _requests(series.baseline[-1])
    if not series.metric.is_share or requests is None:
        return spread
    # half a failure more, so that a baseline without any is not certain
    share = min(spread.centre + 0.5 / requests, 0.5)
    return replace(spread, sd=max(spread.sd, math.sqrt(share * (1.0 - share) / requests)))


def _requests(reading: Reading) -> int | None:
    return reading.requests * len(reading.repeats) if reading.requests else None


def _verdict(series: Series, spread: Spread | None, tail: float, limits: GateLimits) -> Verdict:
    missing = _insufficient(series, limits)
    night = series.tonight
    said = Verdict(
        cell=series.cell,
        metric=series.metric.name,
        name="insufficient samples",
        gated=series.gated,
        reason=missing or "",
        tonight=night.value if night is not None and night.repeats else None,
        nights=spread.nights if spread else len(series.baseline),
    )
    if missing is not None or night is None:
        return said
    if spread is None:
        reason = _too_few_nights(series, limits)
        return replace(said, name="no comparable baseline", reason=reason)
    return _compared(series, night, spread, tail, limits, said)


def _insufficient(series: Series, limits: GateLimits) -> str | None:
    """Why tonight's reading cannot be judged; None when it can."""
    night = series.tonight
    if night is None or not night.repeats:
        return "not measured tonight"
    repeats = 1 if series.metric.once_a_run else limits.min_repeats
    if len(night.repeats) < repeats:
        return f"{len(night.repeats)} repeats, {repeats} are needed"
    needed = series.metric.min_requests
    if night.requests is not None and night.requests < needed:
        return f"{night.requests} requests in a repeat, {needed} are needed"
    return None


def _too_few_nights(series: Series, limits: GateLimits) -> str:
    others = f"; {series.other_nights} nights of another setup" if series.other_nights else ""
    return f"{len(series.baseline)} comparable nights, {limits.min_nights} are needed{others}"


def _compared(
    series: Series,
    night: Reading,
    spread: Spread,
    tail: float,
    limits: GateLimits,
    said: Verdict,
) -> Verdict:
    metric = series.metric
    sign = 1.0 if metric.better == "lower" else -1.0
    moved = scaled(metric, night) - spread.centre
    needed = threshold(spread, metric, tail * limits.night_share)
    low, high = _bootstrap(series, night, spread.centre, limits)
    said = replace(
        said,
        baseline=spread.centre if metric.is_share else math.exp(spread.centre),
        change=_change(metric, moved),
        low=_change(metric, low),
        high=_change(metric, high),
        worse=worse_change(metric, sign * moved),
        threshold=worse_change(metric, needed),
    )
    wild = _wild(series, night, needed, limits)
    if wild is not None:
        return replace(said, name="unstable", reason=wild)
    clear = low > 0.0 or high < 0.0
    if sign * moved > needed and clear:
        return replace(said, name="regressed", reason="beyond the floors and the nights' spread")
    if clear and sign * moved > 0.0 and _window_moved(series, night, tail, limits, sign):
        reason = f"the mean of the last {limits.window_nights} nights is clearly worse"
        return replace(said, name="regressed", reason=reason)
    return _better_or_same(said, -sign * moved > needed and clear, limits)


def _better_or_same(said: Verdict, better: bool, limits: GateLimits) -> Verdict:
    if not better:
        return replace(said, name="ok", reason="within what the baseline's nights do")
    name: VerdictName = "improved"
    if said.worse is not None and -said.worse > limits.implausible_share:
        reason = "implausibly much better: look why, then mark a new baseline"
        return replace(said, name=name, reason=reason, ask_new_baseline=True)
    return replace(said, name=name, reason="beyond the floors and the nights' spread")


def _change(metric: Metric, moved: float) -> float:
    return moved if metric.is_share else _share_of(moved)


def _share_of(moved: float) -> float:
    """A difference of logarithms as a share; infinite beyond what a number holds."""
    try:
        return math.expm1(moved)
    except OverflowError:
        return math.inf


def _wild(series: Series, night: Reading, needed: float, limits: GateLimits) -> str | None:
    """Why nothing can be said of a figure that scatters; None when it can."""
    metric = series.metric
    if not metric.is_share and worse_change(metric, needed) > limits.unstable_share:
        return f"the nights scatter: nothing below {worse_change(metric, needed):.0%} would be seen"
    tonight = _repeat_sd(metric, night)
    usual = [_repeat_sd(metric, item) for item in series.baseline if len(item.repeats) > 1]
    if not usual:
        return None
    typical = math.sqrt(math.fsum(sd * sd for sd in usual) / len(usual))
    floor = _floor(metric, scaled(metric, night))
    if tonight > max(_WILD * typical, floor):
        return f"tonight's repeats scatter {tonight / max(typical, NOTHING):.1f} times as usual"
    return None


def _repeat_sd(metric: Metric, reading: Reading) -> float:
    """Standard deviation of the repeats of one night, on the compared scale."""
    return reading.sd if metric.is_share else reading.log_sd


def _bootstrap(
    series: Series, night: Reading, centre: float, limits: GateLimits
) -> tuple[float, float]:
    """95 % interval of tonight's mean minus the baseline's centre, on the compared scale."""
    label = f"{night.night} {series.cell} {series.metric.name}".encode()
    draw = np.random.Generator(np.random.PCG64([limits.seed, zlib.crc32(label)]))
    repeats = np.asarray(night.repeats)
    means = repeats[draw.integers(repeats.size, size=(_DRAWS, repeats.size))].mean(axis=1)
    means.sort()
    edge = int(_DRAWS * 0.025)
    return (
        scale(series.metric, float(means[edge])) - centre,
        scale(series.metric, float(means[-1 - edge])) - centre,
    )


def _window_moved(
    series: Series, night: Reading, tail: float, limits: GateLimits, sign: float
) -> bool:
    """Whether the mean of the last nights is clearly worse than the nights before them."""
    earlier = limits.window_nights - 1
    values = _values(series)[-limits.baseline_nights :]
    if earlier < 1 or values.size < _WINDOW_BASELINE + earlier:
        return False
    before = with_counting_noise(series, robust_spread(values[:-earlier]))
    recent = float(values[-earlier:].sum()) + scaled(series.metric, night)
    moved = sign * (recent / limits.window_nights - before.centre)
    needed = threshold(before, series.metric, tail * limits.window_share, limits.window_nights)
    return moved > needed
