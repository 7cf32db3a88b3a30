"""From the snapshots of all workers to Prometheus' metric families."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from harness.live.buckets import EDGES_NS, NS_PER_S
from harness.live.snapshot import (
    CellCounts,
    Message,
    RunEnd,
    RunFacts,
    Snapshot,
    add_cells,
    latest_levels,
    worst_client,
)
from harness.workload import Slo

_CELL = ("backend", "mode", "level")
_BACKEND = ("backend", "mode")

_TIMES = {
    "ttft": "time from a request's first byte to its first token, successes only",
    "tpot": "(last token - first token) / (output tokens - 1) per request, successes only",
    "itl": "gap between two token events of one answer, successes only",
    "e2e": "time from a request's first byte to its last token, successes only",
    "send_lateness": "by how much later than intended a request was sent",
}


@dataclass(frozen=True)
class _State:
    """One run as far as it was told; replaced as a whole, so that a scrape sees no mixture."""

    facts: RunFacts | None = None
    #: the newest snapshot of each worker
    snapshots: tuple[Snapshot, ...] = ()
    over: bool = False


class LiveCollector(Collector):
    """The state of the newest run; ``take`` may be called while a scrape is served."""

    def __init__(self) -> None:
        self._state = _State()
        self._lock = threading.Lock()

    def take(self, message: Message) -> None:
        """Take a message of a worker in; one that is old or of another run is dropped."""
        with self._lock:
            self._state = _after(self._state, message)

    def collect(self) -> Iterator[Metric]:
        """The families of the newest run; none before the first."""
        state = self._state
        if state.facts is None:
            return
        yield from _of_the_run(state.facts, over=state.over)
        yield from _of_the_cells(add_cells(state.snapshots), asked=state.facts.slo != Slo())
        yield from _of_the_levels(state.facts, state.snapshots)
        yield from _of_the_client(state.snapshots)


def _after(state: _State, message: Message) -> _State:
    if isinstance(message, RunFacts):
        return _State(facts=message)
    if state.facts is None or message.run != state.facts.run:
        return state
    if isinstance(message, RunEnd):
        return _State(state.facts, state.snapshots, over=True)
    known = {snapshot.worker: snapshot for snapshot in state.snapshots}
    before = known.get(message.worker)
    if before is not None and message.seq <= before.seq:
        return state
    known[message.worker] = message
    return _State(state.facts, tuple(known.values()), state.over)


def level_text(level: float) -> str:
    """A level as its label says it: ``16``, ``0.5``."""
    return f"{level:g}"


def _of_the_run(facts: RunFacts, *, over: bool) -> Iterator[Metric]:
    if not over:
        info = GaugeMetricFamily(
            "kvknee_run_info",
            "1 while a run goes",
            labels=("run", "scenario", "model", "version"),
        )
        models = ",".join(sorted({backend.model for backend in facts.backends}))
        info.add_metric((facts.run, facts.scenario, models, facts.version), 1)
        yield info
    yield GaugeMetricFamily(
        "kvknee_run_start_timestamp_seconds",
        "when the newest run began, wall clock",
        value=facts.start_wall_s,
    )
    yield from _of_the_limits(facts.slo)
    yield from _of_the_theory(facts)


def _of_the_limits(slo: Slo) -> Iterator[Metric]:
    limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    family = GaugeMetricFamily("kvknee_slo_seconds", "limit per request", labels=("metric",))
    for name, limit in limits.items():
        if limit is not None:
            family.add_metric((name,), limit)
    yield from _unless_empty(family)


def _of_the_theory(facts: RunFacts) -> Iterator[Metric]:
    token = GaugeMetricFamily(
        "kvknee_kv_bytes_per_token",
        "KV cache bytes of one token by the model's config; absent when that is not known",
        labels=_BACKEND,
    )
    request = GaugeMetricFamily(
        "kvknee_kv_bytes_per_request_predicted",
        "KV cache bytes of one whole request: bytes per token x (prompt + output) tokens",
        labels=_BACKEND,
    )
    for backend in facts.backends:
        if backend.kv_bytes_per_token is not None:
            labels = (backend.name, backend.mode)
            token.add_metric(labels, backend.kv_bytes_per_token)
            tokens = facts.prompt_tokens + facts.output_tokens
            request.add_metric(labels, backend.kv_bytes_per_token * tokens)
    yield from _unless_empty(token)
    yield from _unless_empty(request)


def _of_the_cells(cells: list[CellCounts], *, asked: bool) -> Iterator[Metric]:
    if not cells:
        return
    for name, text in _TIMES.items():
        yield _histogram(name, text, cells)
    yield _outcomes(cells)
    if asked:
        yield _counter(
            "good_requests",
            "requests that met every limit",
            ((cell, cell.good) for cell in cells if cell.good is not None),
        )
    yield _counter(
        "prompt_tokens",
        "prompt tokens of the successes",
        ((cell, cell.prompt_tokens) for cell in cells),
    )
    yield _counter(
        "output_tokens",
        "output tokens of the successes, counted when a request ends",
        ((cell, cell.output_tokens) for cell in cells),
    )
    yield _gauge("users", "users asked for now", ((cell, cell.users) for cell in cells))
    yield _gauge(
        "requests_in_flight",
        "requests sent and not ended",
        ((cell, cell.in_flight) for cell in cells),
    )


def _histogram(name: str, text: str, cells: Iterable[CellCounts]) -> Metric:
    family = HistogramMetricFamily(f"kvknee_{name}_seconds", text, labels=_CELL)
    edges = [*(str(edge / NS_PER_S) for edge in EDGES_NS[name]), "+Inf"]
    for cell in cells:
        times = cell.times[name]
        buckets = list(zip(edges, accumulate(times.counts), strict=True))
        family.add_metric(_labels(cell), buckets, times.sum_ns / NS_PER_S)
    return family


def _outcomes(cells: Iterable[CellCounts]) -> Metric:
    family = CounterMetricFamily(
        "kvknee_requests", "requests that ended, by outcome", labels=(*_CELL, "outcome")
    )
    for cell in cells:
        for outcome, count in cell.outcomes.items():
            family.add_metric((*_labels(cell), outcome), count)
    return family


def _counter(name: str, text: str, values: Iterable[tuple[CellCounts, float]]) -> Metric:
    family = CounterMetricFamily(f"kvknee_{name}", text, labels=_CELL)
    for cell, value in values:
        family.add_metric(_labels(cell), value)
    return family


def _gauge(name: str, text: str, values: Iterable[tuple[CellCounts, float]]) -> Metric:
    family = GaugeMetricFamily(f"kvknee_{name}", text, labels=_CELL)
    for cell, value in values:
        family.add_metric(_labels(cell), value)
    return family


def _of_the_levels(facts: RunFacts, snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    current = GaugeMetricFamily(
        "kvknee_current_level", "level being run; 0 while it is not loaded", labels=_BACKEND
    )
    start = GaugeMetricFamily(
        "kvknee_level_start_timestamp_seconds",
        "when the latest level of a backend began, wall clock",
        labels=_BACKEND,
    )
    levels = latest_levels(snapshots)
    for backend in facts.backends:
        labels = (backend.name, backend.mode)
        level = levels.get(labels)
        current.add_metric(labels, level.level if level is not None else 0.0)
        if level is not None:
            start.add_metric(labels, level.start_wall_s)
    yield current
    yield from _unless_empty(start)


def _of_the_client(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    client = worst_client(snapshots)
    if client is None:
        return
    for name, text, value in (
        ("client_lag_seconds", "largest event-loop lag of the last second", client.lag_s),
        ("client_cpu_ratio", "CPU time of the busiest client process, of a core", client.cpu_ratio),
        ("client_bound", "1 while the load generator is the limit", client.bound),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"kvknee_{name}", text, value=float(value))


def _labels(cell: CellCounts) -> tuple[str, str, str]:
    return (cell.backend, cell.mode, level_text(cell.level))


def _unless_empty(family: Metric) -> Iterator[Metric]:
    if family.samples:
        yield family
