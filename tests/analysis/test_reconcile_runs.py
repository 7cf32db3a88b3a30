"""Runs of real servers: nearly all of their KV memory has a name, and theory is what it costs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from harness.analysis.reconcile_cells import cells_of_run
from harness.analysis.reconcile_types import Reconciled
from harness.analysis.summary_types import RunSummary
from harness.kv.plan import plan
from harness.kv.plan_types import PlanOptions
from harness.records import RequestRecord, RunEvent
from harness.report.build import build_report
from harness.rundir import RunDir
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run
from tests.support.stored_runs import DYNAMIC, PAGED_STATIC, stored_run

#: backend of a run, and its mode
SERVERS = [
    (PAGED_STATIC, "paged", "paged"),
    (PAGED_STATIC, "contiguous", "static"),
    (DYNAMIC, "contiguous", "dynamic"),
]


@cache
def reported(name: str) -> tuple[RunSummary, dict[str, Any]]:
    """The summary of a stored run, and its model's config."""
    with TemporaryDirectory() as folder:
        path = stored_run(name, Path(folder))
        config = RunDir.open(path).model_config("contiguous")
        assert config is not None
        return build_report(path), config


def explained(name: str, backend: str) -> list[Reconciled]:
    summary, _ = reported(name)
    found = [item for item in summary.reconciled if item.cell.backend == backend]
    assert all(isinstance(item, Reconciled) for item in found)
    return [item for item in found if isinstance(item, Reconciled)]


@pytest.mark.parametrize(("run", "backend", "mode"), SERVERS)
def test_less_than_a_hundredth_of_the_kv_memory_stays_unexplained(
    run: str, backend: str, mode: str
) -> None:
    cells = explained(run, backend)
    assert [item.cell.level for item in cells] == [1, 4, 12]
    for item in cells:
        assert item.cell.mode == mode
        assert item.theory == "config"
        for name in ("used", "reserved"):
            stage = item.stage(name)  # type: ignore[arg-type]
            assert stage is not None
            assert stage.unexplained_share is not None
            assert stage.unexplained_share < 0.01, (item.cell.label, stage)
            assert all(step.amount_bytes > 0 for step in stage.steps)
            total = sum(step.amount_bytes for step in stage.steps)
            assert stage.start_bytes + total + stage.unexplained_bytes == stage.end_bytes


@pytest.mark.parametrize(("run", "backend", "mode"), SERVERS)
def test_the_fitted_bytes_per_token_are_those_of_the_plan(
    run: str, backend: str, mode: str
) -> None:
    summary, config = reported(run)
    planned = plan(config, PlanOptions(context=400))
    # 4 layers x 2 KV heads x 32 x 2 (K and V) x 2 B
    assert planned.kv_bytes_per_token == 1024
    (fit,) = (f for f in summary.fits if (f.backend, f.kind) == (backend, "kv_bytes"))
    slope = fit.terms[1]
    assert slope is not None
    assert slope.value == pytest.approx(planned.kv_bytes_per_token, rel=0.01)


def test_the_steps_are_those_of_each_layout() -> None:
    paged, static = explained(PAGED_STATIC, "paged"), explained(PAGED_STATIC, "contiguous")
    # 16 MiB in 128 blocks, one of them null; vLLM needs none for what it has not begun
    for item in paged:
        reserved = item.stage("reserved")
        assert reserved is not None
        assert reserved.end_bytes == 16 * 2**20
        assert reserved.steps[0].reason == "null_block"
        assert reserved.steps[0].amount_bytes == 131_072
    # a slot of 2,048 tokens for each request, whatever it holds; 8 slots at most
    for item in static:
        used = item.stage("used")
        assert used is not None
        assert [step.reason for step in used.steps] == ["slot"]
        assert used.end_bytes == pytest.approx(item.requests * 2048 * 1024, rel=1e-6)
        assert item.requests <= 8


def test_the_report_shows_each_step_and_what_is_absent(tmp_path: Path) -> None:
    path = stored_run(PAGED_STATIC, tmp_path)
    build_report(path)
    page, text = (path / "report.html").read_text(), (path / "report.md").read_text()
    for part in ("rounding up to blocks", "null block", "rest of each request", "unexplained"):
        assert part in page
        assert part in text
    assert "not measurable in a process on the CPU" in page
    assert "1,024 B per token, from the model" in text
    summary = json.loads((path / "summary.json").read_text())
    cell = summary["reconciled"][0]
    assert (cell["backend"], cell["level"]) == ("paged", 1.0)
    stages = {stage["name"]: stage for stage in cell["stages"]}
    assert set(stages) == {"used", "reserved", "process"}
    assert stages["used"]["unexplained_bytes"] == 0
    assert {fit["kind"] for fit in summary["fits"]} == {"kv_bytes", "ttft", "tpot"}


def test_without_a_kept_config_the_servers_own_word_is_named_as_such(tmp_path: Path) -> None:
    path = stored_run(DYNAMIC, tmp_path)
    (path / "configs" / "contiguous.json").unlink()
    found = build_report(path).reconciled
    assert {item.theory for item in found if isinstance(item, Reconciled)} == {"server"}
    assert "no second source" in (path / "report.md").read_text()


def test_a_damaged_config_is_counted_and_passed_over(tmp_path: Path) -> None:
    path = stored_run(DYNAMIC, tmp_path)
    (path / "configs" / "contiguous.json").write_text("{")
    run = RunDir.open(path)
    assert run.model_config("contiguous") is None
    assert run.damaged == {"contiguous.json": 1}
    assert build_report(path).reconciled


def test_the_first_half_of_a_cell_that_was_begun_anew_is_not_explained() -> None:
    """Its stale copy lies a minute before the cell's start; without it nothing changes."""
    run = build_run((PAGED,), (1,), (20,))
    (cell,) = {event.cell for event in run.events if event.cell is not None}
    start_s = min(event.t_s for event in run.events if event.cell == cell)
    stale = [
        msgspec.structs.replace(r, worker="gone", t_intended_s=r.t_intended_s - 60)
        for r in run.records
    ]
    anew = RunEvent(t_s=start_s, kind="level_redone", cell=cell)

    def requests(records: list[RequestRecord]) -> int:
        (found,) = cells_of_run(run.manifest, records, [anew, *run.events], run.series, {})
        return len(found.table.ok)

    assert requests([*stale, *run.records]) == requests(list(run.records)) == len(run.records)
