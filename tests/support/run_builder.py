"""Synthetic runs with known truth: a closed loop in front of a server that is a formula.

The server admits ``seats`` requests at a time, first come first served; prefill takes
``prefill_s``, each further token ``tpot_s`` plus ``tpot_per_running_s`` for each request that
runs at that level. Nothing is random but a small jitter from a fixed seed, so every figure
that a report must show can be computed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.manifest import Manifest
from harness.observe.series import BackendSeries, Series
from harness.records import RequestRecord, RunEvent
from harness.workload import Slo, Workload
from tests.support.fake_pages import Gauges, pages_of, series_of
from tests.support.fake_records import cell_of, level_events, level_records, simulate_level
from tests.support.fake_server import OUTPUT, PAGED, PROMPT, STATIC, FakeServer


@dataclass
class Run:
    """Everything a run directory holds, in memory."""

    manifest: Manifest
    records: list[RequestRecord] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    #: backend -> (scrape times, page text)
    pages: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    series: dict[str, BackendSeries] = field(default_factory=dict)


def manifest(
    servers: Sequence[FakeServer] = (PAGED, STATIC),
    levels: Sequence[float] = (1, 4, 16, 32),
    min_requests: Sequence[int] = (20, 100, 200, 400),
    slo: Slo | None = None,
    **changes: object,
) -> Manifest:
    facts: dict[str, object] = {
        "schema_version": 1,
        "run_id": "20260101-000000-test",
        "kvknee_version": "0.1.0",
        "status": "complete",
        "t0_s": 1000.0,
        "t0_wall_s": 1_767_225_600.0,
        "t_end_s": 2000.0,
        "workload": Workload(
            scenario="concurrency",
            endpoint="/v1/completions",
            prompt_tokens=PROMPT,
            output_tokens=OUTPUT,
            levels=tuple(float(level) for level in levels),
            seed=0,
            min_requests=tuple(min_requests),
            min_level_s=10.0,
            max_level_s=120.0,
            request_timeout_s=60.0,
            idle_timeout_s=30.0,
        ),
        "slo": slo or Slo(ttft_s=0.5, tpot_s=0.05),
        "max_failure_rate": 0.0,
        "backends": tuple(server.info for server in servers),
        "fingerprint": {"model": "tiny", "prompt_tokens": PROMPT, "output_tokens": OUTPUT},
        "environment": {"cpu": "2 cores", "python": "3.11"},
        "scrape_interval_s": 1.0,
    }
    return Manifest(**{**facts, **changes})  # type: ignore[arg-type]


def build_run(
    servers: Sequence[FakeServer] = (PAGED, STATIC),
    levels: Sequence[int] = (1, 4, 16, 32),
    min_requests: Sequence[int] = (20, 100, 200, 400),
    interval_s: float = 1.0,
    **changes: object,
) -> Run:
    """A healthy run over all servers and levels, the servers alternating."""
    run = Run(manifest(servers, levels, min_requests, **changes))  # type: ignore[arg-type]
    gauges = {server.info.name: Gauges() for server in servers}
    now = 1001.0
    run.events.append(RunEvent(t_s=1000.0, kind="run_start"))
    for level, wanted in zip(levels, min_requests, strict=True):
        for server in servers:
            cell = cell_of(server, level)
            walked = simulate_level(server, level, now, wanted)
            run.records += level_records(cell, walked, len(run.records))
            run.events += level_events(cell, walked)
            gauges[server.info.name].sample(walked, interval_s)
            now = walked.end_s + 0.5
    run.events.append(RunEvent(t_s=now, kind="run_end"))
    run.manifest = replace_manifest(run.manifest, t_end_s=now)
    for server in servers:
        name = server.info.name
        run.series[name] = series_of(server, gauges[name])
        run.pages[name] = pages_of(server, gauges[name])
    return run


def replace_manifest(old: Manifest, **changes: object) -> Manifest:
    """A copy of a manifest with some fields changed."""
    facts = {name: getattr(old, name) for name in old.__struct_fields__}
    return Manifest(**{**facts, **changes})


def replace_series(
    old: BackendSeries, values: Mapping[str, Series] | None = None, **changes: object
) -> BackendSeries:
    """A copy of a backend's series with some series or fields changed."""
    merged = {**old.values, **(values or {})}
    return replace(old, values=merged, **changes)  # type: ignore[arg-type]
