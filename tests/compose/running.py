"""The CPU stack, built and brought up by Compose on an engine of our own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.compose.engine import Engine
from tests.compose.files import CPU, GPU, ROOT, documented, resolved
from tests.compose.stand_ins import make_prometheus, make_python

#: what can be brought up without a registry: Grafana's image is in no package source
SERVICES = ("paged", "contiguous", "prometheus")
#: one server is published at another port than the one that it has in the stack's network
SETTINGS = {"PAGED_PORT": "8100"}
UP_S, DOWN_S = 900.0, 120.0


@dataclass(frozen=True)
class RunningStack:
    """The stack and its engine."""

    engine: Engine

    def compose(
        self, *arguments: str, timeout_s: float = 60, settings: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Compose with both files and no ``.env``; ``settings`` as a user would export them."""
        # what this shell exports would count as a setting
        quiet = {name: "" for name in documented() if name in os.environ}
        return self.engine.run(
            [
                *("docker", "compose", "--progress", "plain", "--env-file", os.devnull),
                *("--file", str(GPU), "--file", str(CPU), *arguments),
            ],
            timeout_s,
            environment={**quiet, **SETTINGS, **(settings or {})},
            cwd=ROOT,
        )

    def containers(self) -> dict[str, Mapping[str, Any]]:
        """Service -> its container as Compose lists it, the ended ones included."""
        lines = self.compose("ps", "--all", "--format", "json").stdout.splitlines()
        return {entry["Service"]: entry for entry in map(json.loads, lines)}

    def inspect(self, service: str) -> Mapping[str, Any]:
        """All that the engine knows of a service's container."""
        found: list[Mapping[str, Any]] = json.loads(
            self.engine.docker("inspect", str(self.containers()[service]["ID"]))
        )
        return found[0]

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """A command inside a service's container."""
        return self.compose("exec", "--no-TTY", service, *command)

    def prometheus(self, path: str) -> Any:
        """The ``data`` of an answer of Prometheus' API."""
        answer = self.execute("prometheus", "wget", "-q", "-O", "-", f"http://127.0.0.1:9090{path}")
        assert answer.returncode == 0, answer.stdout
        return json.loads(answer.stdout)["data"]

    def query(self, expression: str) -> dict[str, float]:
        """An instant query: ``backend`` (else ``instance``) -> value."""
        result = self.prometheus(f"/api/v1/query?query={quote(expression)}")["result"]
        return {
            item["metric"].get("backend") or item["metric"].get("instance", ""): float(
                item["value"][1]
            )
            for item in result
        }

    def wait_for_scrapes(self) -> None:
        """Return when both servers have been scraped after this moment."""
        now_s, end = time.time(), time.monotonic() + 60
        while True:
            at_s = self.query('timestamp(up{job="servers"} == 1)')
            if len(at_s) == 2 and min(at_s.values()) > now_s:
                return
            assert time.monotonic() < end, f"no scrape after {now_s}: {at_s}"
            time.sleep(0.2)


@contextmanager
def running_stack(engine: Engine) -> Iterator[RunningStack]:
    """Stand-in bases, ``docker compose up --build --wait``, and down in the end."""
    services = resolved(GPU, CPU)["services"]
    python = services["contiguous"]["build"]["args"]["PYTHON_IMAGE"]
    _timed("base image", lambda: make_python(engine, python))
    _timed("Prometheus", lambda: make_prometheus(engine, services["prometheus"]["image"], python))
    stack = RunningStack(engine)
    try:
        _timed("up --build", lambda: _up(stack))
        yield stack
    finally:
        _timed("down", lambda: _done(stack.compose("down", "--volumes", timeout_s=DOWN_S)))


def _up(stack: RunningStack) -> None:
    done = stack.compose("up", "--detach", "--build", "--wait", *SERVICES, timeout_s=UP_S)
    if done.returncode != 0:
        logs = stack.compose("logs", "--no-color", "--tail", "60").stdout
        raise AssertionError(f"{done.stdout[-2000:]}\n{logs[-12_000:]}")


def _done(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-6000:]


def _timed(what: str, work: Any) -> None:
    start = time.monotonic()
    work()
    # pytest shows it with -s, and where the test fails
    print(f"{what}: {time.monotonic() - start:.0f} s")
