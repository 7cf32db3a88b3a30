"""PromQL as the panels use it: one query with its legend, and the fragments they share.

Grafana fills in ``$backend`` and ``$run`` (regular expressions), ``$__rate_interval`` (at
least four scrapes) and ``$__range`` (the dashboard's time range).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Prometheus' labels of a backend as the dashboard's variable selects it
BACKEND = 'backend=~"$backend"'
#: the run that the dashboard's variable selects: 1 while it goes, absent before and after
RUN = 'kvknee_run_info{run=~"$run"}'

#: Shortest step of a latency query: ``$__rate_interval`` is then 20 s or longer, so that a
#: level with few requests still has some in each window.
LATENCY_STEP = "5s"
#: of a rate: windows of 8 s or longer
RATE_STEP = "2s"

Format = Literal["time_series", "table", "heatmap"]


@dataclass(frozen=True)
class Query:
    """One PromQL expression of a panel."""

    expr: str
    legend: str = "{{backend}}"
    format: Format = "time_series"
    #: evaluated once, at the end of the time range
    instant: bool = False
    #: the shortest step between two points, None: as fine as the screen shows
    step: str | None = None


def of_run(expr: str) -> str:
    """What the load generator states, while the selected run went."""
    return f"{expr} and on (instance) {RUN}"


def client_rate(metric: str, by: str = "backend") -> str:
    """A counter of the load generator per second, summed over levels and modes."""
    rate = f"rate({metric}{{{BACKEND}}}[$__rate_interval])"
    return f"sum by ({by}) ({of_run(rate)})"


def client_quantile(quantile: float, name: str) -> str:
    """A quantile of ``kvknee_<name>_seconds`` by backend, over the rate interval."""
    buckets = client_rate(f"kvknee_{name}_seconds_bucket", "backend, le")
    return f"histogram_quantile({quantile:g}, {buckets})"


def whole_run(expr: str, by: str) -> str:
    """The last value that counters had in the selected run, summed ``by`` labels.

    The load generator counts from 0 in every run, so this is the run's total. A counter that
    was born during the run loses its first step in ``increase``; here it does not. The last
    figures of a run are scraped just after it is over, hence the three seconds.
    """
    run = f"last_over_time({RUN}[3s])"
    return f"sum by ({by}) (last_over_time(({expr} and on (instance) {run})[$__range:1s]))"


def level_quantile(quantile: float, name: str) -> str:
    """A quantile over all requests of a level, by backend and level."""
    buckets = whole_run(f"kvknee_{name}_seconds_bucket{{{BACKEND}}}", "backend, level, le")
    return f"histogram_quantile({quantile:g}, {buckets})"


def while_full(kind: Literal["avg", "max"], rule: str) -> str:
    """A ``kvknee:full_load:`` rule over the time that each level was full, by level."""
    series = of_run(f"kvknee:full_load:{rule}{{{BACKEND}}}")
    return f"{kind} by (backend, level) ({kind}_over_time(({series})[$__range:1s]))"


def level_table(expr: str) -> Query:
    """A figure per backend and level, as rows of a table."""
    return Query(expr, legend="", format="table", instant=True)
