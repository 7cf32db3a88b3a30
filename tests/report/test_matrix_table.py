"""The table of a matrix: measured cells, failed ones, and those that were left out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.records import CellKey, RunEvent
from harness.report.build import build_report
from harness.report.html import html_report
from harness.report.matrix import COMPACT, HEADS, is_matrix, matrix_table
from harness.report.method import lengths_text
from tests.support.fake_records import cell_of, record
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, build_run, replace_manifest
from tests.support.run_files import write_run

LONG = CellKey("paged", "paged", 2000, 128, 4.0)
BEYOND = CellKey("paged", "paged", 512, 128, 16.0)


def matrix_run() -> Run:
    """Levels 1 and 4 of 512 + 128 are measured; 2,000 + 128 does not fit, 16 came too late."""
    run = build_run([PAGED], levels=(1, 4), min_requests=(20, 100))
    work = msgspec.structs.replace(
        run.manifest.workload, shapes=((512, 128), (2000, 128)), scenario="matrix"
    )
    run.manifest = replace_manifest(run.manifest, workload=work)
    run.events += [
        skipped(LONG, "2,128 tokens a request, the server's context holds 2,048", planned=True),
        skipped(BEYOND, "interrupted", planned=False),
    ]
    return run


def skipped(cell: CellKey, reason: str, *, planned: bool) -> RunEvent:
    detail = {"reason": reason} | ({"planned": True} if planned else {})
    return RunEvent(t_s=5000.0, kind="level_skipped", cell=cell, detail=detail)  # type: ignore[arg-type]


def summary_of(run: Run) -> RunSummary:
    return analyse(run.manifest, run.records, run.events, run.series)


def test_one_row_per_cell_in_the_order_of_lengths_and_levels() -> None:
    summary = summary_of(matrix_run())
    assert is_matrix(summary)
    rows = matrix_table(summary).rows
    assert [row[:4] for row in rows] == [
        ("512", "128", "1", "paged"),
        ("512", "128", "4", "paged"),
        ("512", "128", "16", "paged"),
        ("2000", "128", "4", "paged"),
    ]
    assert {len(row) for row in rows} == {len(HEADS)}
    by_head = dict(zip([" ".join(head).strip() for head in HEADS], rows[1], strict=True))
    # 5.5 ms + 4 x 0.4 ms a token
    assert by_head["TPOT p50 ms"] == "7.10"
    assert by_head["mode"] == "paged"
    # 4 requests hold at most 5 blocks of 131,072 B each: 2.5 MiB
    assert by_head["KV used max"] == "2.50 MiB"
    assert by_head["reserved max"] == "16.0 MiB"
    assert by_head["note"] == ""


def test_what_was_not_measured_says_why_and_shows_no_zero() -> None:
    rows = matrix_table(summary_of(matrix_run())).rows
    assert set(rows[3][5:-1]) == {"-"}
    assert rows[3][-1] == ("not measured: 2,128 tokens a request, the server's context holds 2,048")
    assert rows[2][-1] == "not measured: the run was interrupted before it"
    remarks = matrix_table(summary_of(matrix_run())).remarks
    assert "paged 2000+128 c4: not measured: 2,128 tokens" in remarks[1]


def test_a_cell_left_out_on_purpose_is_no_finding() -> None:
    found = [f for f in summary_of(matrix_run()).findings if f.code == "level_skipped"]
    assert [finding.cell for finding in found] == [BEYOND]


def test_the_reports_hold_the_table(tmp_path: Path) -> None:
    run = matrix_run()
    path = write_run(run, tmp_path)
    build_report(path)
    markdown = (path / "report.md").read_text()
    assert "## Matrix" in markdown
    assert "512, 2000 prompt \\+ 128" in markdown or "512, 2000 prompt + 128" in markdown
    page = (path / "report.html").read_text()
    assert page.index("<h2>Matrix</h2>") < page.index("<h2>Findings</h2>")
    kept = msgspec.json.decode((path / "summary.json").read_bytes())
    assert [item["level"] for item in kept["skipped"]] == [4.0, 16.0]
    assert kept["workload"]["shapes"] == [[512, 128], [2000, 128]]


def test_many_lengths_make_no_figures_whose_colours_repeat() -> None:
    run = matrix_run()
    for number in range(9):
        cell = CellKey("paged", "paged", 16 + number, 8, 1.0)
        run.records.append(record(cell, 900_000 + number, user=0))
    page = html_report(summary_of(run))
    assert "<svg" not in page
    assert "<h2>Matrix</h2>" in page


def test_other_runs_have_no_such_table(tmp_path: Path) -> None:
    run = build_run([PAGED], levels=(1,), min_requests=(20,))
    assert not is_matrix(summary_of(run))
    assert "## Matrix" not in (build_and_read(run, tmp_path))
    assert lengths_text(run.manifest.workload) == "512 prompt + 128 output tokens"


def build_and_read(run: Run, tmp_path: Path) -> str:
    path = write_run(run, tmp_path)
    build_report(path)
    return (path / "report.md").read_text()


def test_the_compact_columns_fit_a_terminal() -> None:
    rows = [
        [row[place] for place in COMPACT] for row in matrix_table(summary_of(matrix_run())).rows
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COMPACT))]
    assert sum(widths) + len(widths) <= 80


def test_what_was_recorded_before_a_cell_began_anew_does_not_count() -> None:
    """A killed level left 7 records; the resumed run measured it whole from 9000 s on."""
    run = build_run([PAGED], levels=(1,), min_requests=(20,))
    cell = cell_of(PAGED, 1)
    start_s = run.events[1].t_s
    whole = summary_of(run).cells[0].counts
    earlier_s = start_s - 500.0
    run.events[1:1] = [
        RunEvent(t_s=earlier_s, kind="level_start", cell=cell, detail={"users": 1}),
        RunEvent(t_s=start_s - 100.0, kind="resumed", detail={"worker": "local-2"}),
        RunEvent(t_s=start_s - 99.0, kind="level_redone", cell=cell),
    ]
    run.records = [
        record(
            cell, 700_000 + n, worker="local", user=0, t_intended_s=earlier_s + n,
            t_sent_s=earlier_s + n, t_end_s=earlier_s + n + 0.7,
        )
        for n in range(7)
    ] + run.records  # fmt: skip
    summary = summary_of(run)
    assert summary.cells[0].counts == whole
    assert not {f.code for f in summary.findings} & {"interrupted", "level_skipped"}
