"""Short runs of a fake server, and what their analysis says."""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures, RunSummary
from harness.records import RequestRecord
from tests.support.fake_server import PAGED, FakeServer
from tests.support.run_builder import Run, build_run


def summed(run: Run) -> RunSummary:
    return analyse(run.manifest, iter(run.records), run.events, run.series)


def one_level(level: int = 16, wanted: int = 200, server: FakeServer = PAGED) -> Run:
    return build_run((server,), (level,), (wanted,))


def codes(summary: RunSummary) -> set[str]:
    return {finding.code for finding in summary.findings}


def changed(run: Run, change: Callable[[int, RequestRecord], dict[str, object]]) -> Run:
    """The run with some fields of its records changed."""
    made: list[RequestRecord] = []
    for index, old in enumerate(run.records):
        facts = {name: getattr(old, name) for name in old.__struct_fields__}
        made.append(RequestRecord(**{**facts, **change(index, old)}))
    run.records = made
    return run


def cell(summary: RunSummary, backend: str, level: float) -> CellFigures:
    return next(c for c in summary.cells_of(backend) if c.cell.level == level)
