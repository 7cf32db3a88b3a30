"""A real Prometheus and the embedded scraper read one page: both give the same series."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.observe import names as n
from harness.observe import scraper
from harness.observe.collect import backend_series
from harness.observe.prometheus import fetch_run, find, probe
from harness.observe.prometheus_api import PrometheusFaultError
from harness.observe.series import Series
from harness.rundir import RunDir
from tests.observe.support import MetricsServer, backend, manifest, until
from tests.support.local_stack import free_port

INTERVAL_S = 1.0
#: the two do not read at the same moment, and each read takes its time
SLACK_S = 0.3
CONFIG = """
global:
  scrape_interval: 1s
  scrape_timeout: 800ms
scrape_configs:
  - job_name: llm
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""
PAGE = """\
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_running{{engine="1"}} 1
vllm:kv_cache_usage_perc{{engine="0"}} {usage}
vllm:kv_cache_usage_perc{{engine="1"}} 0.5
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:num_preemptions_total{{engine="0"}} NaN
vllm:cache_config_info{{block_size="128",engine="0",kv_cache_memory_bytes="16777216",\
num_gpu_blocks="256"}} 1.0
vllm:cache_config_info{{block_size="128",engine="1",kv_cache_memory_bytes="16777216",\
num_gpu_blocks="256"}} 1.0
"""
#: (running, usage, tokens); the server restarts after the third
STEPS = [(0, 0.0, 100), (4, 0.25, 250), (25, 0.984, 900), (2, 0.1, 40), (7, 0.3, 90)]


@pytest.fixture
def prometheus(tmp_path: Path, server: MetricsServer) -> Iterator[str]:
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("the Debian package prometheus is needed here")
        pytest.skip("install the Debian package prometheus")
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(port=server.port))
    port = free_port()
    log = (tmp_path / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, (tmp_path / "prometheus.log").read_text()
        try:
            return httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        until(ready, "Prometheus to be ready")
        yield url
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def read_by_both(server: MetricsServer, count: int) -> None:
    """Wait until each has read the page as it is now ``count`` times."""
    wanted = {agent: server.asked[agent] + count for agent in ("Prometheus", "python-httpx")}
    until(
        lambda: all(server.asked[agent] >= number for agent, number in wanted.items()),
        f"both to read it {count} times",
    )


def near(a: Series, b: Series) -> bool:
    """Every sample of ``a`` has one of the same value in ``b`` within one interval."""
    return all(
        any(abs(t - u) <= INTERVAL_S + SLACK_S and v == w for u, w in zip(b.t_s, b.v, strict=True))
        for t, v in zip(a.t_s, a.v, strict=True)
    )


def test_scraper_and_prometheus_give_the_same_series(
    run: RunDir, server: MetricsServer, prometheus: str
) -> None:
    targets = {"paged": server.url}
    server.text = PAGE.format(running=0, usage=0.0, tokens=100)
    until(lambda: find(prometheus, targets) is not None, "Prometheus to see the target up")
    found_server = find(prometheus, targets)
    assert found_server is not None
    assert found_server.version is not None

    handle = scraper.start(run.path, targets, INTERVAL_S)
    try:
        # a busy machine starts it in seconds: until then Prometheus alone has samples
        until(lambda: server.asked["python-httpx"] > 0, "the scraper's first read")
        t0_s, t0_wall_s = time.monotonic(), time.time()
        for running, usage, tokens in STEPS:
            server.text = PAGE.format(running=running, usage=usage, tokens=tokens)
            read_by_both(server, 2)
        server.status = 500
        read_by_both(server, 2)
        server.status = 200
        read_by_both(server, 2)
    finally:
        handle.stop(10)
    assert handle.fault() is None

    known = manifest(
        t0_s=t0_s, t0_wall_s=t0_wall_s, t_end_s=time.monotonic(), prometheus_url=prometheus
    )
    assert fetch_run(run, known, found_server) == {}
    theirs = backend_series(run, backend(), known)
    ours = backend_series(run, backend(), manifest(t0_s=t0_s, t0_wall_s=t0_wall_s))
    assert (theirs.source, ours.source) == ("prometheus", "scraper")
    assert theirs.pool == ours.pool
    assert theirs.missing == ours.missing
    assert n.PREEMPTIONS_TOTAL in ours.missing
    assert theirs.values.keys() == ours.values.keys()
    for name, series in ours.values.items():
        assert near(series, theirs.values[name]), name
        assert near(theirs.values[name], series), name

    expected = [step[0] + 1 for step in STEPS]
    for found in (ours, theirs):
        # the values in their order, each engine's added: +1
        assert list(dict.fromkeys(found.values[n.RUNNING].v.tolist())) == expected
        generated = found.values[n.GENERATION_TOKENS_TOTAL]
        # 100 -> 900, restart at 40, -> 90
        assert generated.increase(t0_s, time.monotonic()) == (900 - 100) + 40 + (90 - 40)
        assert found.failed_t_s.size >= 2


def test_a_target_that_prometheus_does_not_scrape(prometheus: str) -> None:
    other = {"paged": f"http://127.0.0.1:{free_port()}/metrics"}
    assert find(prometheus, other) is None
    with pytest.raises(PrometheusFaultError, match="does not scrape paged"):
        probe(prometheus, other)


def test_what_is_no_prometheus(server: MetricsServer) -> None:
    server.text = "a 1\n"
    url = f"http://127.0.0.1:{server.port}"
    assert find(url, {"paged": server.url}) is None
    with pytest.raises(PrometheusFaultError, match="is no Prometheus server"):
        probe(url, {"paged": server.url})
