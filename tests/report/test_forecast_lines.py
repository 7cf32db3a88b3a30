"""Prediction against measurement and what would move it, as the reports show them."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis.forecast_types import Forecast, Mover
from harness.analysis.run import analyse
from harness.analysis.verdict_types import BackendVerdict
from harness.kv.capacity import Capacity
from harness.report.build import build_report
from harness.report.forecast_lines import (
    brief_lines,
    derivations,
    forecast_lines,
    mover_lines,
)
from harness.report.terminal import print_summary
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run
from tests.support.run_files import write_run


@pytest.fixture(scope="module")
def verdict() -> BackendVerdict:
    run = build_run((PAGED,), (16, 32), (100, 100))
    return analyse(run.manifest, run.records, run.events, run.series).verdicts[0]


def two(verdict: BackendVerdict, *, holds: bool = True) -> BackendVerdict:
    found = Forecast(
        Capacity(25, ("a",)), Capacity(31, ("b",)), "steady", "of the records", ("it fits",)
    )
    return replace(verdict, forecast=found, predicted=found.steady, prediction_holds=holds)


def test_both_predictions_and_the_choice_are_told(verdict: BackendVerdict) -> None:
    lines = forecast_lines(two(verdict))
    assert lines[1] == (
        "Worst case (all at full length at once) 25, steady state (out of step) 31; the steady "
        "state is taken, not the worst case: of the records."
    )
    assert lines[2] == "It fits."
    assert derivations(two(verdict)) == ("worst case: a", "steady state: b")


def test_a_terminal_is_told_of_differences_alone(verdict: BackendVerdict) -> None:
    assert len(brief_lines(verdict)) == 1
    assert len(brief_lines(two(verdict))) == 2
    assert len(brief_lines(two(verdict, holds=False))) == 3


def test_without_a_prediction_there_is_nothing(verdict: BackendVerdict) -> None:
    bare = replace(verdict, forecast=None, predicted=None, no_prediction=None)
    assert forecast_lines(bare) == []
    assert brief_lines(bare) == []
    assert derivations(bare) == ()


def test_movers_with_and_without_a_figure(verdict: BackendVerdict) -> None:
    moved = (Mover("KV cache in fp8", 25, 51, "8 of 16 bits"), Mover("tp 2", 25, None, "no config"))
    assert mover_lines(replace(verdict, movers=moved)) == [
        "KV cache in fp8: 25 -> 51 (8 of 16 bits)",
        "tp 2: no figure (no config)",
    ]


def test_every_report_shows_them(tmp_path: Path) -> None:
    path = write_run(build_run(), tmp_path)
    summary = build_report(path)
    console = Console(file=StringIO(), width=80, no_color=True)
    print_summary(summary, console)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    markdown = (path / "report.md").read_text()
    page = (path / "report.html").read_text()
    fp8 = "8 of 16 bits: floor(128 blocks x 16 / 8) = 256 blocks"
    for text in (shown, markdown, page):
        assert "What would move it" in text
        assert fp8 in " ".join(text.split())
    assert "KV cache in fp8: 25 -> 51" in shown
    assert "null block: 1 of 128" in page.lower()
    first = json.loads((path / "summary.json").read_text())["verdicts"][0]
    assert first["movers"][0] == {
        "change": "KV cache in fp8",
        "old": 25,
        "new": 51,
        "working": fp8,
    }
    assert first["movers"][2]["new"] is None
    assert first["forecast"]["fits"] == "worst"
    assert first["forecast"]["worst"]["requests"] == 25
