"""The figures that are compared, and what each is in a cell's summary."""

from __future__ import annotations

from harness.analysis.percentiles import Distribution
from harness.analysis.summary_types import CellFigures
from harness.compare.types import Metric, MetricName, Sample


def _percentile(name: MetricName, latency: str, p: int) -> Metric:
    return Metric(name, latency=latency, p=p)


METRICS: tuple[Metric, ...] = (
    _percentile("ttft_p50_s", "ttft_s", 50),
    _percentile("ttft_p95_s", "ttft_s", 95),
    _percentile("ttft_p99_s", "ttft_s", 99),
    _percentile("tpot_p50_s", "tpot_s", 50),
    _percentile("tpot_p95_s", "tpot_s", 95),
    _percentile("tpot_p99_s", "tpot_s", 99),
    _percentile("e2e_p50_s", "e2e_s", 50),
    _percentile("e2e_p95_s", "e2e_s", 95),
    Metric("output_tokens_per_s", lower_is_better=False),
    Metric("kv_bytes_per_token"),
    Metric("failure_share", kind="difference"),
)
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")


def value_of(metric: Metric, figures: CellFigures, sample: Sample | None) -> float | None:
    """The figure as the run's own report shows it; None where it was not measured.

    KV bytes per token are those of the moments in ``sample``.
    """
    if metric.p is not None:
        return distribution_of(metric, figures).value(metric.p)
    if metric.name == "output_tokens_per_s":
        return figures.throughput.output_tokens_per_s
    if metric.name == "failure_share":
        return figures.counts.failure_share
    if sample is None or not sample.token_places.sum() > 0:
        return None
    return float(sample.used_bytes.sum() / sample.token_places.sum())


def distribution_of(metric: Metric, figures: CellFigures) -> Distribution:
    """The latency that a percentile is one of."""
    found = getattr(figures.latency, metric.latency or "")
    if not isinstance(found, Distribution):
        raise TypeError(f"{metric.name} is no percentile")
    return found
