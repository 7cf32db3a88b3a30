"""What a night's figures are called and how they read. Pure."""

from __future__ import annotations

import math

from harness.nightly.gate_types import Verdict, VerdictName
from harness.nightly.metrics import METRICS, Metric
from harness.nightly.night_types import Judged
from harness.nightly.sight import ChangePoint
from harness.report.units import ABSENT, count_text, number, signed

#: Metric -> (title, unit, factor from the metric's own unit).
NAMES: dict[str, tuple[str, str, float]] = {
    **{
        f"{name}_p{p}_s": (f"{name.upper()} p{p}", "ms", 1000.0)
        for name in ("ttft", "tpot", "e2e")
        for p in (50, 95, 99)
    },
    "output_tokens_per_s": ("output", "tok/s", 1.0),
    "goodput_rps": ("goodput", "req/s", 1.0),
    "memory_knee": ("memory knee", "requests", 1.0),
    "kv_bytes_per_token": ("KV / token", "B", 1.0),
    "failure_rate": ("failed", "%", 100.0),
}
#: Verdicts that say that nothing can be said.
UNJUDGED: tuple[VerdictName, ...] = (
    "insufficient samples",
    "no comparable baseline",
    "unstable",
)
#: Verdicts that say that a figure has another level.
MOVED: tuple[VerdictName, ...] = ("regressed", "improved")
#: a change point must be as clear as this before a night is named
_CLEAR_P = 0.05


def cell_text(item: Judged) -> str:
    """``short paged 512+64 c16``: the suite's run and the cell, which is named after it."""
    return f"{item.run} {item.series.cell.removeprefix(item.run).lstrip(': ')}".rstrip()


def metric_text(metric: Metric) -> str:
    """``TTFT p95``."""
    return NAMES[metric.name][0]


def unit_text(metric: Metric) -> str:
    """The unit of ``bare_text``."""
    return NAMES[metric.name][1]


def bare_text(metric: Metric, value: float | None) -> str:
    """A figure in ``unit_text``, without it."""
    if value is None or not math.isfinite(value):
        return ABSENT
    shown = value * NAMES[metric.name][2]
    return count_text(round(shown, 6)) if metric.name == "memory_knee" else number(shown)


def value_text(metric: Metric, value: float | None) -> str:
    """``480 ms``."""
    text = bare_text(metric, value)
    return text if text == ABSENT else f"{text} {unit_text(metric)}"


def _of_change(metric: Metric) -> str:
    return "points" if metric.is_share else "%"


def _signed(value: float | None) -> str:
    return signed(value * 100.0) if value is not None and math.isfinite(value) else ABSENT


def change_text(metric: Metric, change: float | None) -> str:
    """``+12.3 %``, or of shares ``+1.2 points``."""
    text = _signed(change)
    return text if text == ABSENT else f"{text} {_of_change(metric)}"


def interval_text(verdict: Verdict) -> str:
    """``+10.1 to +14.6``, in the unit of the change."""
    low, high = _signed(verdict.low), _signed(verdict.high)
    return ABSENT if ABSENT in (low, high) else f"{low} to {high}"


def threshold_text(verdict: Verdict) -> str:
    """The change from which on a regression is called, with its sign: ``+5.2 %``."""
    metric = METRICS[verdict.metric]
    if verdict.threshold is None:
        return ABSENT
    worse = verdict.threshold if metric.better == "lower" else -verdict.threshold
    return change_text(metric, worse)


def sight_text(item: Judged) -> str:
    """The smallest regression that is found the same night: ``8.4 %``."""
    seen = item.sight.regression
    if seen is None or not math.isfinite(seen):
        return ABSENT
    return f"{number(seen * 100.0)} {_of_change(item.series.metric)}"


def clear_since(item: Judged) -> ChangePoint | None:
    """The change point of what moved, where it is clear and points the same way."""
    since, change = item.since, item.verdict.change
    if since is None or change is None or item.verdict.name not in MOVED:
        return None
    if since.p_value > _CLEAR_P:
        return None
    return since if since.change * change > 0.0 else None


def since_text(item: Judged) -> str:
    """``since night <id> (p 0.001)``; empty where it is not clear."""
    since = clear_since(item)
    if since is None:
        return ""
    tonight = item.series.tonight
    when = "tonight" if tonight and since.night == tonight.night else f"night {since.night}"
    return f"since {when} (p {since.p_value:.3f})"


def moved_text(item: Judged) -> str:
    """What moved, by how much, how sure, since when::

    paged 512+64 c16: TTFT p95 +12.3 % (428 ms to 480 ms; 95 % interval +10.1 to +14.6,
    called from +5.2 %), since night 20261128 (p 0.001)
    """
    verdict, metric = item.verdict, item.series.metric
    known = [
        f"{value_text(metric, verdict.baseline)} to {value_text(metric, verdict.tonight)}",
        f"95 % interval {interval_text(verdict)}, called from {threshold_text(verdict)}",
    ]
    text = f"{cell_text(item)}: {metric_text(metric)} {change_text(metric, verdict.change)}"
    since = since_text(item)
    return f"{text} ({'; '.join(known)})" + (f", {since}" if since else "")


def verdict_text(verdict: Verdict) -> str:
    """The verdict's name; an improvement that is not believed is marked."""
    return f"{verdict.name}?" if verdict.ask_new_baseline else verdict.name
