"""Memory from a real Prometheus server equals memory from the embedded scraper."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from harness.observe.collect import all_series
from harness.observe.series import BackendSeries, Series
from harness.rundir import RunDir
from tests.scenarios.locust_process import QUICK, headless, run_dirs
from tests.support.fake_openai import VLLM_PAGE, FakeOpenAi, serve
from tests.support.local_stack import LocalStack, newest_run, run_scenario
from tests.support.prometheus_server import SCRAPE_S, prometheus_server
from tests.support.scripted_server import Peer


def both_sources(run: RunDir) -> tuple[Mapping[str, BackendSeries], Mapping[str, BackendSeries]]:
    """The run's series from Prometheus, and those of the embedded scraper."""
    theirs = all_series(run, run.manifest())
    (run.path / "prometheus.json").unlink()
    ours = all_series(run, run.manifest())
    assert {series.source for series in theirs.values()} == {"prometheus"}
    assert {series.source for series in ours.values()} == {"scraper"}
    return theirs, ours


@dataclass
class RisingUsage(FakeOpenAi):
    """States a KV usage that grows with time, so that a value tells when it was read."""

    started_s: float = field(default_factory=time.monotonic)
    #: 127 usable blocks fill in ten minutes
    per_s: float = 1 / 600

    def _get(self, peer: Peer, path: str) -> None:
        usage = (time.monotonic() - self.started_s) * self.per_s
        name = "vllm:kv_cache_usage_perc"
        self.metrics = f"{VLLM_PAGE}# TYPE {name} gauge\n{name} {usage}\n"
        super()._get(peer, path)

    def read_at_s(self, usage: Series) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The monotonic seconds at which the server stated these values."""
        return self.started_s + usage.v / self.per_s


@pytest.mark.slow
def test_both_sources_say_when_to_within_one_interval(tmp_path: Path) -> None:
    fake = RisingUsage(version={"version": "0.32.0"})
    (tmp_path / "prometheus").mkdir()
    with (
        serve(fake) as server,
        prometheus_server(tmp_path / "prometheus", [server.url]) as prometheus,
    ):
        ended = headless(
            *("--backends", f"a={server.url}", *QUICK, "--levels", "1"),
            *("--min-level-seconds", "12", "--prometheus-url", prometheus),
            folder=tmp_path,
        )
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().prometheus_url == prometheus
    for source in both_sources(run):
        usage = source["a"].values["kv_usage_ratio"]
        assert len(usage.t_s) >= 10
        late_s = np.abs(usage.t_s - fake.read_at_s(usage))
        assert late_s.max() <= SCRAPE_S, late_s


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.timeout(600)
def test_both_sources_give_the_same_series(stack: LocalStack, tmp_path: Path) -> None:
    levels = ("--levels", "4,32", "--min-requests", "10,64")
    urls = (stack.paged_url, stack.contiguous_url)
    with prometheus_server(tmp_path, urls) as prometheus:
        done = run_scenario(stack, tmp_path / "r", *levels, "--prometheus-url", prometheus)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    theirs, ours = both_sources(RunDir.open(newest_run(tmp_path / "r")))
    for backend in ("paged", "contiguous"):
        for name in ("kv_used_bytes", "running"):
            first, second = theirs[backend].values[name], ours[backend].values[name]
            assert first.v.max() == pytest.approx(second.v.max(), rel=0.1)
            # a cache that fills and empties within a second shows each of them other
            # moments; that both tell the same time is the test above
            assert share_within_one_interval(first, second) >= 0.75, (backend, name)


def share_within_one_interval(first: Series, second: Series) -> float:
    """Share of the second's samples that lie between what the first saw around them.

    Both sample once a second, at other moments: what lies within one interval either way
    (and a little for the time that a scrape takes) spans what a sample between may show.
    """
    inside = []
    for t_s, value in zip(second.t_s, second.v, strict=True):
        near = first.v[np.abs(first.t_s - t_s) <= 1.2 * SCRAPE_S]
        if near.size >= 2:
            inside.append(near.min() <= value <= near.max())
    assert len(inside) >= 10
    return sum(inside) / len(inside)
