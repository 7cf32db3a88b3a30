"""Every panel on a real Prometheus that watched a real run, against that run's report.

Prometheus has the committed configuration with its targets rewritten: nothing answers for the
GPU exporter and for the load generator's container, as on a machine without either.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from harness.live.buckets import EDGES_NS, NS_PER_S
from harness.rundir import RunDir
from tests.dashboards.support import (
    DCGM_FIELDS,
    PROMETHEUS,
    VARIABLES,
    PanelQuery,
    metric_names,
    queries,
)
from tests.support.local_stack import LocalStack, free_port, newest_run, run_scenario
from tests.support.prometheus_server import wait_until_scraped

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]
BACKENDS = ("contiguous", "paged")
LEVELS = (4, 32)
CELLS = [(backend, level) for backend in BACKENDS for level in LEVELS]
#: how far two means over the same seconds may lie apart, as a share of the pool
SAMPLING = 0.15
#: Neighbouring bounds of the TTFT histogram lie at most this far apart.
RESOLUTION = 5 / 3
#: When the load generator's last figures have been scraped, from the run's end.
SCRAPED_S = 3.0

QUERIES = [
    query
    for name in ("run", "capacity")
    for query in queries(name)
    # no GPU here
    if not metric_names(query.expr()) & DCGM_FIELDS
]
#: (panel, query) that only one of the two servers has data for
ONE_BACKEND = {
    ("Preemptions per second", "A"): {"paged"},
    ("Running and waiting", "C"): {"contiguous"},
}


@dataclass(frozen=True)
class Watched:
    """A finished run and the Prometheus that watched it."""

    url: str
    run: RunDir
    summary: Mapping[str, Any]
    start_wall_s: float
    #: the last figures scraped
    end_wall_s: float

    def ask(self, expr: str, at_s: float | None = None) -> list[dict[str, Any]]:
        """An instant query, at the end unless told otherwise."""
        return self._get("query", query=expr, time=at_s or self.end_wall_s)

    def ask_range(self, expr: str) -> list[dict[str, Any]]:
        """The query over the whole run, second by second."""
        return self._get(
            "query_range", query=expr, start=self.start_wall_s, end=self.end_wall_s, step=1
        )

    def ask_latest(self, expr: str, from_s: float, until_s: float) -> dict[str, float]:
        """The last value of each backend in that time: after a run's end there is none."""
        found = self._get("query_range", query=expr, start=from_s, end=until_s, step=0.25)
        return {item["metric"]["backend"]: float(item["values"][-1][1]) for item in found}

    def _get(self, what: str, **arguments: object) -> list[dict[str, Any]]:
        answer = httpx.post(f"{self.url}/api/v1/{what}", data=arguments, timeout=60)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    @property
    def values(self) -> Mapping[str, str]:
        """What Grafana would fill in, with the run as the time range."""
        return {**VARIABLES, "$__range": f"{self.end_wall_s - self.start_wall_s:.0f}s"}

    def cell(self, backend: str, level: int) -> Mapping[str, Any]:
        """The report's figures of a level."""
        return next(
            cell
            for cell in self.summary["cells"]
            if (cell["backend"], cell["level"]) == (backend, level)
        )

    def window(self, backend: str, level: int, until: str) -> tuple[float, float]:
        """(wall time of the window's ``until``, its distance from the window's opening)."""
        manifest, window = self.run.manifest(), self.cell(backend, level)["window"]
        return (
            window[until] - manifest.t0_s + manifest.t0_wall_s,
            window[until] - window["open_s"],
        )

    def of_level(self, query: PanelQuery, backend: str, level: int) -> float:
        """What a panel over levels shows for one of them."""
        (value,) = (
            float(item["value"][1])
            for item in self.ask(query.expr(self.values))
            if (item["metric"]["backend"], item["metric"]["level"]) == (backend, f"{level}")
        )
        return value

    def ttft_s(self, backend: str, level: int) -> list[float]:
        """TTFT of all successes of a level in the run directory, warm-up and drain included."""
        return [
            record.token_us[0] / 1e6
            for record in self.run.records()
            if (record.cell.backend, record.cell.level) == (backend, level)
            and record.outcome == "ok"
        ]


def panel(title: str, ref: str = "A") -> PanelQuery:
    """A query by its panel's title."""
    (found,) = [query for query in QUERIES if (query.panel, query.ref) == (title, ref)]
    return found


@pytest.fixture(scope="module")
def watched(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Two levels against both servers, watched by Prometheus from before the start."""
    program = shutil.which("prometheus")
    assert program, "install the Debian package prometheus"
    folder = tmp_path_factory.mktemp("dashboards")
    harness_port = free_port()
    servers = [u.removeprefix("http://") for u in (stack.paged_url, stack.contiguous_url)]
    config = our_config(folder, servers, harness_port)
    url = f"http://127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_scraped(url, servers)
        done = run_scenario(
            stack,
            folder / "results",
            *("--levels", ",".join(map(str, LEVELS)), "--min-requests", "60,120"),
            *("--metrics-port", str(harness_port)),
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        wait_until_gone(url, f"127.0.0.1:{harness_port}")
        yield finished(url, newest_run(folder / "results"))
    finally:
        server.terminate()
        server.wait(timeout=30)


def our_config(folder: Path, servers: Sequence[str], harness_port: int) -> Path:
    """The committed configuration and rules, with other targets."""
    config = Path(shutil.copytree(PROMETHEUS, folder / "prometheus")) / "prometheus.yml"
    text = config.read_text()
    for old, new in {
        "paged:8000": servers[0],
        "contiguous:8001": servers[1],
        "host.docker.internal:9646": f"127.0.0.1:{harness_port}",
        "load:9646": f"127.0.0.1:{free_port()}",
        "dcgm-exporter:9400": f"127.0.0.1:{free_port()}",
    }.items():
        assert text.count(f'"{old}"') == 1
        text = text.replace(f'"{old}"', f'"{new}"')
    config.write_text(text)
    return config


def wait_until_gone(url: str, instance: str) -> None:
    """Until Prometheus has found that the load generator is no more: it will get nothing else."""
    end = time.monotonic() + 30
    query = f'up{{instance="{instance}"}} == 0'
    while not httpx.get(f"{url}/api/v1/query", params={"query": query}).json()["data"]["result"]:
        assert time.monotonic() < end, "the load generator's page outlives it"
        time.sleep(0.1)


def finished(url: str, path: Path) -> Watched:
    """The run as its report has it."""
    run = RunDir.open(path)
    manifest = run.manifest()
    assert manifest.t_end_s is not None
    return Watched(
        url=url,
        run=run,
        summary=msgspec.json.decode((path / "summary.json").read_bytes()),
        start_wall_s=manifest.t0_wall_s,
        end_wall_s=manifest.t_end_s - manifest.t0_s + manifest.t0_wall_s + SCRAPED_S,
    )


def numbers(found: Sequence[Mapping[str, Any]]) -> list[float]:
    """All finite values of an answer."""
    pairs = [pair for item in found for pair in item.get("values", [item.get("value")])]
    return [float(value) for _, value in pairs if math.isfinite(float(value))]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.id)
def test_a_panel_has_data(watched: Watched, query: PanelQuery) -> None:
    expr = query.expr(watched.values)
    found = watched.ask(expr) if query.instant else watched.ask_range(expr)
    assert numbers(found), f"no data for {expr}"
    seen = {item["metric"]["backend"] for item in found if "backend" in item["metric"]}
    # a heatmap is of one backend at a time, and not every server alarms
    if seen and query.ref:
        assert seen == ONE_BACKEND.get((query.panel, query.ref), set(BACKENDS))


@pytest.mark.parametrize(("backend", "level"), CELLS)
def test_kv_memory_agrees_with_the_report(watched: Watched, backend: str, level: int) -> None:
    """Prometheus and the report's own scraper look once a second, at other moments, at a
    cache that fills and empties within seconds: a handful of samples each.

    What the rules compute is exact, and has its tests with promtool.
    """
    memory = watched.cell(backend, level)["memory"]
    budget = memory["budget_bytes"]
    at_s, length_s = watched.window(backend, level, "close_s")
    for how, reported in (("avg", "mean"), ("max", "maximum")):
        over = f'{{backend="{backend}"}}[{length_s * 1000:.0f}ms]'
        (used,) = numbers(watched.ask(f"{how}_over_time(kvknee:kv_used_bytes{over})", at_s))
        assert used == pytest.approx(memory["used_bytes"][reported], abs=SAMPLING * budget), how
        # the contiguous server states no share: what it has promised is one
        share = memory["usage_ratio"] or {
            key: value / budget for key, value in memory["reserved_bytes"].items()
        }
        (taken,) = numbers(watched.ask(f"{how}_over_time(kvknee:kv_usage_ratio{over})", at_s))
        assert taken == pytest.approx(share[reported], abs=SAMPLING), how


def test_a_full_cache_alarms_and_nothing_is_down(watched: Watched) -> None:
    """32 users on 8 slots: 24 wait for the whole level."""
    found = watched.ask_range('ALERTS{alertname="KvkneeKvFull", alertstate="firing"}')
    assert "contiguous" in {item["metric"]["backend"] for item in found}
    assert not watched.ask_range('ALERTS{alertname=~"KvkneeServer.+", alertstate="firing"}')


@pytest.mark.parametrize(("backend", "level"), CELLS)
def test_every_request_is_counted(watched: Watched, backend: str, level: int) -> None:
    succeeded = watched.of_level(panel("Every level"), backend, level)
    assert succeeded == len(watched.ttft_s(backend, level))


@pytest.mark.parametrize(("backend", "level"), CELLS)
def test_ttft_of_a_level_lies_in_the_bucket_of_its_requests(
    watched: Watched, backend: str, level: int
) -> None:
    """The quantile of n values is the ceil(0.95 n)-th, and the panel knows its bucket."""
    shown = watched.of_level(panel("TTFT p95 by level"), backend, level)
    exact = np.quantile(watched.ttft_s(backend, level), 0.95, method="inverted_cdf")
    edges_s = [edge / NS_PER_S for edge in EDGES_NS["ttft"]]
    assert bisect_left(edges_s, shown) == bisect_left(edges_s, float(exact))


@pytest.mark.parametrize(("backend", "level"), CELLS)
def test_ttft_agrees_with_the_report(watched: Watched, backend: str, level: int) -> None:
    """The *Run* panel over the report's window: as close as the histogram can tell.

    It has the requests that ended in the window, the report those that were sent in it: a
    third of these are others. Where a few in a hundred wait seconds for memory and the rest
    do not, that moves p95 from one kind to the other, so the ranks around it bound it.
    """
    at_s, length_s = watched.window(backend, level, "last_counted_s")
    values = {**watched.values, "$__rate_interval": f"{length_s * 1000:.0f}ms"}
    # half a second until the load generator states it, one until it is scraped
    found = watched.ask_latest(panel("TTFT (client)", "B").expr(values), at_s, at_s + 1.5)
    shown = found[backend]
    low, high = np.quantile(watched.ttft_s(backend, level), (0.9, 0.99), method="inverted_cdf")
    reported = watched.cell(backend, level)["latency"]["ttft_s"]["p95"]
    assert min(low, reported) / RESOLUTION <= shown <= max(high, reported) * RESOLUTION


@pytest.mark.parametrize(("backend", "level"), CELLS)
def test_throughput_agrees_with_the_report(watched: Watched, backend: str, level: int) -> None:
    """The panel counts a request's tokens when it ends, the report when they arrive."""
    shown = watched.of_level(panel("Output tokens per second by level"), backend, level)
    reported = watched.cell(backend, level)["throughput"]["output_tokens_per_s"]
    assert shown == pytest.approx(reported, rel=0.25)


def test_a_token_costs_what_theory_says(watched: Watched) -> None:
    """4 layers x 2 KV heads x 32 x 2 (K and V) x 2 bytes = 1,024."""
    for ref in ("A", "B"):
        found = watched.ask_range(panel("KV bytes per token", ref).expr())
        assert {item["metric"]["backend"] for item in found} == set(BACKENDS)
        assert set(numbers(found)) == {1024}
