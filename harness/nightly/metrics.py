"""The metrics that nights are compared by: which way is better, and the floors. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    A change counts only when it is beyond both floors: ``relative_floor`` as a share of the
    baseline, ``absolute_floor`` in the metric's own unit. ``is_share`` metrics lie in [0, 1], may
    be zero, and are compared by difference; all others by ratio. ``min_requests`` is how many
    requests one repeat needs behind the figure.
    """

    name: str
    better: Better
    relative_floor: float
    absolute_floor: float
    min_requests: int
    is_share: bool = False
    #: one figure for the whole run, whatever its repeats
    once_a_run: bool = False


def _latency(name: str, absolute_floor_s: float) -> tuple[Metric, ...]:
    # five samples beyond the percentile, as harness.analysis.percentiles has it
    needed = ((50, 10), (95, 100), (99, 500))
    return tuple(Metric(f"{name}_p{p}_s", "lower", 0.05, absolute_floor_s, n) for p, n in needed)


_ALL = (
    *_latency("ttft", 0.002),
    *_latency("tpot", 0.0002),
    *_latency("e2e", 0.010),
    Metric("output_tokens_per_s", "higher", 0.05, 1.0, 10),
    Metric("goodput_rps", "higher", 0.05, 0.05, 10),
    # a knee is a level: one request more or less is the finest step there is
    Metric("memory_knee", "higher", 0.05, 1.0, 0, once_a_run=True),
    # exact up to block rounding, so a small change is a change
    Metric("kv_bytes_per_token", "lower", 0.01, 1.0, 0),
    Metric("failure_rate", "lower", 0.0, 0.01, 10, is_share=True),
)
#: By name, in the order of listings.
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
