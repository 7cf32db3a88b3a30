"""What the live metrics may import: records, errors, and the report's limits for a client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_import_direction import imports, reached, sources, starts_with

ALLOWED = (
    *("harness.live", "harness.manifest", "harness.records", "harness.workload", "harness.errors"),
    *("harness.analysis.client", "harness.analysis.client_samples"),
)


@pytest.mark.parametrize("path", sources("live"), ids=lambda p: p.name)
def test_live_metrics_know_nothing_of_the_load(path: Path) -> None:
    ours = {name for name in imports(path) if starts_with(name, "harness")}
    assert [n for n in sorted(ours) if not any(starts_with(n, a) for a in ALLOWED)] == []


def test_the_server_process_does_not_load_the_load() -> None:
    (server,) = (path for path in sources("live") if path.name == "server.py")
    names = {name for path in reached(server) for name in imports(path, with_types=False)}
    heavy = {"numpy", "gevent", "locust", "matplotlib"}
    assert {name for name in names if name.split(".")[0] in heavy} == set()
