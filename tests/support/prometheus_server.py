"""A real Prometheus server that scrapes what a test names, every second."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.local_stack import free_port

SCRAPE_S = 1.0


@contextmanager
def prometheus_server(folder: Path, urls: Sequence[str]) -> Iterator[str]:
    """Its address, once every target of ``urls`` (``http://host:port``) is up."""
    program = shutil.which("prometheus")
    assert program, "install the Debian package prometheus"
    targets = [url.removeprefix("http://") for url in urls]
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
    with server:
        try:
            wait_until_scraped(url, targets)
            yield url
        finally:
            server.terminate()


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
