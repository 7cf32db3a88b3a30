"""What the reports say of steady stretches, fitted knees, intervals and tails."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.observe import names
from harness.observe.series import Series
from harness.report.curve_lines import confidence_lines, curve_evidence, curve_where
from harness.report.figures import speed_figures
from harness.report.html import html_report
from harness.report.markdown import markdown_report
from harness.report.rows import headline_columns
from harness.report.rows_sure import steady_text, sure_columns
from harness.report.summary_json import summary_object
from harness.report.tail_rows import MOST_ROWS, brief_tails, tail_tables
from harness.report.terminal import print_summary
from tests.support.fake_server import PAGED, STATIC
from tests.support.run_builder import Run, build_run, replace_series

LEVELS = (1, 4, 8, 16, 32)


def summed(run: Run) -> RunSummary:
    return analyse(run.manifest, run.records, run.events, run.series)


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    return summed(build_run((PAGED, STATIC), LEVELS, (20,) * len(LEVELS)))


def growing() -> RunSummary:
    """One level whose KV usage rises from start to end."""
    run = build_run((PAGED,), (4, 16), (100, 100))
    usage = run.series["paged"].values[names.KV_USAGE_RATIO]
    grown = np.linspace(0.1, 0.9, len(usage))
    values = {names.KV_USAGE_RATIO: Series(usage.t_s, grown)}
    run.series["paged"] = replace_series(run.series["paged"], values)
    return summed(run)


def test_markdown_has_curves_intervals_and_tails(summary: RunSummary) -> None:
    text = markdown_report(summary)
    assert "- Throughput by the scalability law: " in text
    assert "- Throughput by two lines: " in text
    assert "beyond doubt (95 %): " in text
    assert "| gain per doubling (95 % interval) |" in text
    assert "## Why this p99" in text
    # requests beyond 25 seats wait: their tail is the pool's
    assert "KV memory | " in text and "of the pool used" in text


def test_html_has_them_too_and_draws_the_law(summary: RunSummary) -> None:
    text = html_report(summary)
    for words in (
        "Why this p99", "How sure each level is", "Throughput by two lines",
        "Thin: the fitted scalability law.", "beyond doubt",
    ):  # fmt: skip
        assert words in text
    # a line for each backend beside its measured one
    drawn = next(d for d in speed_figures(summary) if d.key == "throughput")
    few = next(d for d in speed_figures(growing()) if d.key == "throughput")
    assert "Thin" in drawn.caption and "Thin" not in few.caption


def test_summary_json_has_figures_for_programs(summary: RunSummary) -> None:
    found = json.loads(json.dumps(summary_object(summary)))
    usl, piecewise = found["verdicts"][0]["confidence"]["curves"]
    assert (usl["kind"], piecewise["kind"]) == ("usl", "piecewise")
    assert "curve" not in usl and len(usl["terms"]) == 3
    cell = found["cells"][0]
    assert cell["steady"]["state"] == "whole" and cell["steady"]["share"] == 1.0
    assert cell["spread"]["n"] == cell["counts"]["ok"]
    assert {item["figure"] for item in cell["tail"]["figures"]} == {"TTFT", "TPOT"}


def test_the_terminal_is_short(summary: RunSummary) -> None:
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=100, color_system=None))
    text = " ".join(out.getvalue().split())
    assert text.count("Throughput knee by fitted curves: scalability law ") == 2
    assert "Why p99 of TTFT at 32 is " in text and "beyond it: 2 KV memory" in text


def test_few_levels_have_no_curve_and_say_why() -> None:
    found = growing()
    for curve in found.verdicts[0].confidence.curves:
        assert curve_where(curve) == "not fitted"
        assert curve_evidence(curve) == ("it needs 5 judged levels with output, and there are 2",)
    assert any("not fitted" in line for line in confidence_lines(found.verdicts[0]))


def test_an_unsteady_level_is_flagged_beside_its_name(summary: RunSummary) -> None:
    found = growing()
    column = headline_columns(found.cells)[-1]
    assert column.title == "steady"
    assert "no" in [column.text(cell) for cell in found.cells]
    # where all is steady there is no such column
    assert headline_columns(summary.cells)[-1].title == "limited by"
    sure = {c.title: c for c in sure_columns(found.cells)}
    assert sure["steady"].text(found.cells[0]) != "100 %"
    assert steady_text(None) == "-"


def test_undecided_stands_beside_the_figure(summary: RunSummary) -> None:
    cells = summary.cells_of("paged")
    columns = [c for c in sure_columns(cells) if c.title == "SLO met"]
    assert [c.unit for c in columns] == ["", "95 % interval", "so"]
    # 20 of 20 is 83.9 to 100 %
    assert [c.text(cells[0]) for c in columns] == ["100 %", "83.9 % to 100 %", "undecided"]
    so = [c for c in sure_columns(cells, 0.8) if c.title == "SLO met"][-1]
    assert so.text(cells[0]) != "undecided"


def test_the_worst_requests_are_few_and_counted(summary: RunSummary) -> None:
    for name, totals, worst in tail_tables(summary):
        assert name in ("paged", "contiguous")
        assert len(worst.rows) <= MOST_ROWS * len(totals.rows)
        beyond = sum(int(row[4]) for row in totals.rows)
        assert len(worst.rows) == beyond or "are not" in worst.notes[0]
    assert brief_tails(()) == []


def test_verdicts_are_the_same_twice() -> None:
    one, two = (summed(build_run((PAGED,), LEVELS, (20,) * len(LEVELS))) for _ in range(2))
    assert one.verdicts == two.verdicts and one.cells == two.cells
