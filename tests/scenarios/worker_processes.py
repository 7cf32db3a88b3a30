"""Masters and workers in processes of their own, and what their runs hold."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.records import RequestRecord, RunEvent
from harness.rundir import RunDir
from tests.scenarios.locust_process import (
    records_of,
    started,
)
from tests.scenarios.test_concurrency import closed_port
from tests.support.fake_openai import FakeOpenAi
from tests.support.scripted_server import Peer, Request

KEY = "sk-very-secret-key"


@dataclass
class Counted:
    """A server that counts the load's requests (a probe asks for 8 tokens), in many threads."""

    fake: FakeOpenAi = field(default_factory=FakeOpenAi)
    asked: int = 0
    prompts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.fake.fault = self._answer

    def _answer(self, peer: Peer, request: Request) -> None:
        with self._lock:
            self.asked += request.json["max_tokens"] == 4
            self.prompts[str(request.json["prompt"])] += 1
        self.fake.answer(peer, request)


def ports() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Options of a master and of its workers that make them meet."""
    port = str(closed_port())
    return ("--master-bind-host", "127.0.0.1", "--master-bind-port", port), ("--master-port", port)


def here() -> tuple[str, ...]:
    """The same for ``--processes``."""
    bind, join = ports()
    return (*bind, *join)


@contextmanager
def workers(
    join: tuple[str, ...], *options: str, folder: Path, count: int = 2
) -> Generator[list[subprocess.Popen[str]]]:
    """Worker processes, each with its own results folder."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                started("--worker", *join, *options, folder=folder / f"worker{number}")
            )
            for number in range(count)
        ]


def identities(records: list[RequestRecord]) -> set[tuple[str, int]]:
    return {(record.worker, record.seq) for record in records}


def of_kind(events: list[RunEvent], kind: str) -> list[RunEvent]:
    return [event for event in events if event.kind == kind]


def mid_level(folder: Path) -> bool:
    """Whether a run has records of both workers in its directory."""
    return any(len({r.worker for r in records_of(run)}) == 2 for run in opened(folder))


def opened(folder: Path) -> list[RunDir]:
    """Run directories with a manifest; the newest may be in the making."""
    paths = sorted((folder / "results").glob("*/manifest.json"))
    return [RunDir.open(path.parent) for path in paths]


#: goes on until something ends it
ENDLESS = (
    *("--levels", "4", "--min-requests", "1000000", "--max-level-seconds", "600"),
    *("--prompt-tokens", "8", "--output-tokens", "4", "--prometheus-url", "none"),
)


def temporary(run: RunDir) -> list[Path]:
    """Folders in which workers keep their own records of a run."""
    return list(Path(tempfile.gettempdir()).glob(f"kvknee-{run.path.name}-*"))
