"""Stand-in servers in real processes, and a stack made of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.stack.launches import Launch
from harness.stack.local import Runtime
from harness.stack.options import StackPlan
from harness.stack.process import marked
from harness.stack.state import read_state
from tests.support.local_stack import free_port

SCRIPT = Path(__file__).with_name("server_script.py")


def script(port: int, behaviour: str) -> tuple[str, ...]:
    return (sys.executable, str(SCRIPT), str(port), behaviour)


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for what real processes do; fails when it does not happen."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@dataclass
class Shown:
    """A Progress that keeps what it is told."""

    updates: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tails: list[tuple[str, Sequence[str]]] = field(default_factory=list)

    def update(self, text: str) -> None:
        self.updates.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def log_tail(self, title: str, lines: Sequence[str]) -> None:
        self.tails.append((title, lines))


@pytest.fixture
def progress() -> Shown:
    return Shown()


@dataclass
class Bench:
    """A home folder, two ports, and servers that behave as told."""

    home: Path
    ports: Mapping[str, int]
    behaviours: dict[str, str]

    def runtime(self, grace_s: float = 10.0) -> Runtime:
        return Runtime(
            environment={"PATH": "/usr/bin:/bin"},
            clock=time.monotonic,
            sleep=time.sleep,
            installed=lambda name: True,
            gpu_present=lambda: False,
            launches=self.launches,
            grace_s=grace_s,
        )

    def launches(self, plan: StackPlan, environment: Mapping[str, str]) -> list[Launch]:
        return [
            Launch(
                name=name,
                url=f"http://127.0.0.1:{plan.port(name)}",
                log=plan.home / "logs" / f"{name}.log",
                command=script(plan.port(name), self.behaviours[name]),
                environment=environment,
                kind="vllm" if name == "paged" else "contiguous",
                mode="paged" if name == "paged" else plan.cache,
            )
            for name in plan.backends
        ]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two healthy servers unless told otherwise; whatever a test leaves is ended."""
    home = tmp_path / "home"
    made = Bench(
        home=home,
        ports={"paged": free_port(), "contiguous": free_port()},
        behaviours={"paged": "healthy", "contiguous": "healthy"},
    )
    yield made
    state = read_state(home)
    for process in marked(state.mark) if state else []:
        process.kill()
