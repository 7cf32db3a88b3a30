"""A finished level is judged from what was written since it began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from harness.analysis.summary_types import CellFigures
from harness.plan.search_types import LevelVerdict
from harness.report.build import build_report
from harness.search.judge import Judge
from harness.workload import KneeAsk, Slo
from tests.support.fake_server import FakeServer, paged_info
from tests.support.run_builder import Run, build_run
from tests.support.run_files import append_run, write_run


def search_run() -> Run:
    """Levels 4, 32 and 16 of a server with 25 seats, as a search might ask for them."""
    run = build_run([FakeServer(paged_info(), seats=25)], (4, 32, 16), (50, 50, 50))
    work = msgspec.structs.replace(run.manifest.workload, search=KneeAsk(attainment=0.9))
    manifest = msgspec.structs.replace(
        run.manifest, workload=work, prometheus_url="http://127.0.0.1:9"
    )
    return replace(run, manifest=manifest)


def rule(
    figures: CellFigures, slo: Slo, attainment: float, before: CellFigures | None
) -> tuple[LevelVerdict, ...]:
    """Tells what it was given."""
    lower = () if before is None else (f"{before.cell.level:g}",)
    bad = figures.admission.state == "kv_memory"
    return (
        LevelVerdict(
            *(figures.cell.level, "capacity", "bad" if bad else "good"),
            *(None, None, None, attainment, figures.counts.ok, None, lower),
        ),
    )


def levels_of(run: Run) -> list[Run]:
    """What each level writes."""
    cells = list(dict.fromkeys(e.cell for e in run.events if e.cell is not None))
    ends = {e.cell: e.t_s for e in run.events if e.kind == "level_end"}
    parts, since_s = [], 0.0
    for cell in cells:
        until_s = ends[cell]
        pages = {
            name: [(t, text) for t, text in found if since_s < t <= until_s]
            for name, found in run.pages.items()
        }
        parts.append(
            replace(
                run,
                records=[r for r in run.records if r.cell == cell],
                events=[e for e in run.events if e.cell == cell],
                pages=pages,
            )
        )
        since_s = until_s
    return parts


def test_each_level_is_judged_as_the_report_judges_it(tmp_path: Path) -> None:
    run = search_run()
    path = write_run(replace(run, records=[], events=[], pages={}), tmp_path)
    judge = Judge(path, rule)
    found: list[CellFigures] = []
    for part in levels_of(run):
        judge.level_begins()
        append_run(path, part)
        cell = part.records[0].cell
        (verdict,) = judge.verdicts(cell)
        # 25 seats: only 32 is bad; the rule was given the wanted share
        assert (verdict.level, verdict.threshold) == (cell.level, 0.9)
        assert verdict.state == ("bad" if cell.level == 32 else "good")
        # 4, 32, 16: the highest level below each
        assert verdict.evidence == {4: (), 32: ("4",), 16: ("4",)}[cell.level]
        figures = judge.figures(cell)
        assert figures is not None
        found.append(figures)
    summary = build_report(path)
    whole = {item.cell: item for item in summary.cells}
    assert [item.cell.level for item in found] == [4, 32, 16]
    for item in found:
        same = whole[item.cell]
        assert (item.window, item.counts) == (same.window, same.counts)
        assert (item.latency, item.throughput) == (same.latency, same.throughput)
        assert (item.admission, item.unjudged) == (same.admission, same.unjudged)


def test_what_is_read_does_not_grow_with_the_run(tmp_path: Path) -> None:
    run = search_run()
    path = write_run(replace(run, records=[], events=[], pages={}), tmp_path)
    judge = Judge(path, rule)
    first, *_ = levels_of(run)
    append_run(path, first)
    judge.level_begins()
    # of a level that began before nothing is read any more
    assert judge.figures(first.records[0].cell) is None
    assert judge.verdicts(first.records[0].cell) == ()
