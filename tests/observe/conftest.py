from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.rundir import RunDir
from tests.observe.support import MetricsServer, metrics_server


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path, "run")


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with metrics_server() as found:
        yield found
