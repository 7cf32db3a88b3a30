"""The table for people."""

from __future__ import annotations

from pathlib import Path

import click

from harness.doctor.facts import Memory
from harness.doctor.text import render
from tests.doctor.well_machine import clone, look, well


def test_each_row_is_one_line_where_nobody_looks(tmp_path: Path) -> None:
    report = look(clone(tmp_path), well(which=lambda name: None))
    lines = click.unstyle(render(report, None)).splitlines()
    rows = [line for line in lines if line.startswith("  ")]
    assert len(rows) == len(report.rows)
    assert lines[0] == "this machine"
    assert rows[0] == "  ok       python            Python 3.11.9"
    assert lines[-2].startswith("blocked: docker compose -f ")
    assert lines[-2].endswith(" up, by docker")
    assert lines[-1] == "ready: kvknee up"


def test_a_terminal_gets_lines_that_fit(tmp_path: Path) -> None:
    probes = well(memory=lambda: Memory(4 * 2**30, 2**30))
    report = look(clone(tmp_path), probes, local=True, results=Path("results"))
    text = click.unstyle(render(report, 80)).replace(str(tmp_path), "")
    assert max(map(len, text.splitlines())) <= 80
    whole = " ".join(text.split())
    assert "the two servers need 3 GiB with the smallest model -> end what else runs" in whole
    # narrower than any text: left to the terminal
    assert render(report, 20) == render(report, None)
