"""Memory from a real Prometheus server equals memory from the embedded scraper."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from harness.observe.collect import all_series
from harness.observe.series import Series
from harness.rundir import RunDir
from tests.support.local_stack import LocalStack, free_port, newest_run, run_scenario

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]
SCRAPE_S = 1.0


@pytest.fixture(scope="module")
def prometheus(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server that scrapes both backends every second."""
    program = shutil.which("prometheus")
    assert program, "install the Debian package prometheus"
    folder = tmp_path_factory.mktemp("prometheus")
    targets = [url.removeprefix("http://") for url in (stack.paged_url, stack.contiguous_url)]
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 900ms}\n"
        f"scrape_configs: [{{job_name: servers, static_configs: [{{targets: {targets}}}]}}]\n"
    )
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
        wait_until_scraped(url, targets)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def wait_until_scraped(url: str, targets: list[str]) -> None:
    """Until ``up`` is 1 for every target."""
    end = time.monotonic() + 60
    up: set[str] = set()
    while up != set(targets):
        assert time.monotonic() < end, f"only {up} of {targets} are up"
        time.sleep(0.1)
        try:
            answer = httpx.get(f"{url}/api/v1/query", params={"query": "up == 1"})
        except httpx.TransportError:
            continue
        if answer.status_code == 200:
            up = {r["metric"]["instance"] for r in answer.json()["data"]["result"]}


def test_both_sources_give_the_same_series(
    stack: LocalStack, prometheus: str, tmp_path: Path
) -> None:
    levels = ("--levels", "4,32", "--min-requests", "10,64")
    done = run_scenario(stack, tmp_path, *levels, "--prometheus-url", prometheus)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = RunDir.open(newest_run(tmp_path))
    manifest = run.manifest()
    assert manifest.prometheus_url == prometheus
    theirs = all_series(run, manifest)
    (run.path / "prometheus.json").unlink()
    ours = all_series(run, manifest)
    for backend in ("paged", "contiguous"):
        assert theirs[backend].source == "prometheus", theirs[backend].failures
        assert ours[backend].source == "scraper"
        for name in ("kv_used_bytes", "running"):
            first, second = theirs[backend].values[name], ours[backend].values[name]
            assert first.v.max() == pytest.approx(second.v.max(), rel=0.1)
            assert share_within_one_interval(first, second) >= 0.9, (backend, name)


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
