"""The tables and figures that only some scenarios have."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from harness.analysis.percentiles import distribution
from harness.analysis.scenario_types import (
    ConversationRow,
    FragmentationRow,
    PrefixRow,
    ScenarioFigures,
    TurnRow,
    Waterfall,
    WaterfallStep,
)
from harness.analysis.table import Floats
from harness.kv.occupancy import Occupancy
from harness.records import CellKey
from harness.report.build import build_report
from harness.report.scenario_tables import TextTable, scenario_tables
from harness.report.terminal import print_summary
from harness.report.waterfall_figure import waterfall_figures
from tests.analysis.test_fragmentation import STEPS, mixed
from tests.support.run_builder import build_run
from tests.support.run_files import write_run

MIB = 1024.0 * 1024.0
CELL = CellKey("exact", "static/exact", 200, 100, 64.0)
PREDICTED = Occupancy(
    held=30.0, stored_tokens=9000.0, reserved_tokens=12000.0, pool_share=0.55, steps=100,
    finished=50, preemptions=0,
)  # fmt: skip
ROW = FragmentationRow(
    cell=CELL,
    policy="exact",
    samples=20,
    saturated=18,
    budget_bytes=16 * MIB,
    reserved_bytes=12 * MIB,
    tokens_held=9 * 1024.0,
    held_source="server",
    bytes_per_token=1024.0,
    held=28.5,
    output_tokens_per_s=1500.0,
    predicted=PREDICTED,
    predicted_output_tokens_per_s=1580.0,
)


def ttft(*values: float) -> Floats:
    import numpy as np

    return np.array(values)


def cells(table: TextTable) -> list[dict[str, str]]:
    heads = [f"{title} {unit}".strip() for title, unit, _ in table.heads]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def test_fragmentation() -> None:
    """9 of 12 MiB reserved, 9 of 16 in all; 9,000 of 12,000 simulated."""
    (table,) = scenario_tables(ScenarioFigures(fragmentation=(ROW,)))
    (row,) = cells(table)
    assert row == {
        "server": "exact",
        "mode": "static/exact",
        "level": "64",
        "reserved KV holds tokens measured": "75.0 %",
        "reserved KV holds tokens simulated": "75.0 %",
        "of budget measured": "56.2 %",
        "of budget simulated": "55.0 %",
        "requests held measured": "28.5",
        "requests held simulated": "30.0",
        "output tok/s measured": "1,500",
        "output tok/s simulated": "1,580",
        "samples full / all": "18 / 20",
    }
    assert [note[:14] for note in table.notes] == ["For comparison"]


def test_what_is_missing_is_a_dash_and_a_note() -> None:
    bare = replace(
        ROW, saturated=0, tokens_held=None, predicted=None, predicted_output_tokens_per_s=None
    )
    (table,) = scenario_tables(ScenarioFigures(fragmentation=(bare,)))
    (row,) = cells(table)
    assert row["reserved KV holds tokens measured"] == "-"
    assert row["requests held simulated"] == "-"
    assert any("was not full" in note for note in table.notes)
    assert any("no simulation, because" in note for note in table.notes)
    unknown = replace(bare, policy=None)
    (table,) = scenario_tables(ScenarioFigures(fragmentation=(unknown,)))
    assert any("this way of reserving has no simulation" in note for note in table.notes)


def waterfall(*rates: float | None, differ: bool = False) -> Waterfall:
    names = ("one", "batched", "exact")
    steps = []
    for place, rate in enumerate(rates):
        row = replace(ROW, held=float(2**place), output_tokens_per_s=rate)
        change = ("batching", "reservation")[place - 1] if place else None
        steps.append(WaterfallStep(names[place], "static", change, row))
    return Waterfall(64.0, 0, tuple(steps), budgets_differ=differ)


def test_a_waterfall_is_held_against_the_step_above() -> None:
    found = waterfall(100.0, 300.0, 450.0)
    (table,) = scenario_tables(ScenarioFigures(waterfalls=(found,)))
    rows = cells(table)
    assert [r["what is new"] for r in rows] == ["-", "batching", "reservation"]
    assert [r["requests held against above"] for r in rows] == ["-", "x 2.00", "x 2.00"]
    assert [r["output tok/s against above"] for r in rows] == ["-", "x 3.00", "x 1.50"]
    assert table.notes == ()


def test_a_waterfall_says_what_it_is_not() -> None:
    found = waterfall(100.0, 300.0, differ=True)
    steps = (found.steps[0], replace(found.steps[1], change=None))
    (table,) = scenario_tables(ScenarioFigures(waterfalls=(replace(found, steps=steps),)))
    assert ["same KV budget" in table.notes[0], "without a name" in table.notes[1]] == [True, True]


def test_two_drawings_a_waterfall() -> None:
    held, rate = waterfall_figures((waterfall(100.0, 300.0, 250.0),))
    assert held.title == "exact has 4.00 times the requests held of one"
    assert rate.title == "exact has 2.50 times the output tokens / s of one"
    assert "one 100; batched 300; exact 250" in rate.alt
    assert held.svg.startswith("<svg role=")
    assert "reservation" in rate.svg


def test_no_drawing_of_one_bar_or_of_nothing() -> None:
    assert waterfall_figures((waterfall(100.0, None, None),))[0].key.startswith("held")
    assert len(waterfall_figures((waterfall(100.0, None, None),))) == 1
    assert waterfall_figures(()) == []


def prefix(variant: str, planned: float, hits: float | None) -> PrefixRow:
    return PrefixRow(
        cell=msgspec.structs.replace(CELL, variant=variant),
        n=12,
        n_shared=6,
        planned_ratio=planned,
        hit_ratio=hits,
        ttft_shared_s=distribution(ttft(0.01)),
        ttft_own_s=distribution(ttft(*[0.05] * 12)),
        ttft_s=distribution(ttft(*[0.05] * 12)),
        used_bytes=4 * MIB,
        held=8.0,
    )


def test_shared_prefixes() -> None:
    rows = (prefix("reuse 0", 0.0, 0.0), prefix("reuse 0.5", 0.4, 0.38))
    (table,) = scenario_tables(ScenarioFigures(prefixes=rows))
    first, second = cells(table)
    assert (first["asked"], second["asked"]) == ("reuse 0", "reuse 0.5")
    assert (second["could be found"], second["was found"]) == ("40.0 %", "38.0 %")
    # one sample is too few for a median, twelve are enough
    assert (second["TTFT p50 shared, ms"], second["TTFT p50 own, ms"]) == ("10.0*", "50.0")
    assert second["KV used per request"] == "512 KiB"
    assert table.notes == ()


@pytest.mark.parametrize(
    ("hits", "words"),
    [
        ((None, None), "states no prefix cache"),
        ((0.0, 0.0), "found nothing of what was shared"),
        ((0.2, 0.4), "20.0 % was found where nothing was shared"),
    ],
)
def test_a_server_without_a_prefix_cache_is_named(
    hits: tuple[float | None, float | None], words: str
) -> None:
    rows = (prefix("reuse 0", 0.0, hits[0]), prefix("reuse 0.5", 0.4, hits[1]))
    (table,) = scenario_tables(ScenarioFigures(prefixes=rows))
    assert [words in note for note in table.notes] == [True]


def test_conversations() -> None:
    turn = TurnRow(CELL, 2, 30, 384.0, 319.0, None, distribution(ttft(*[0.02] * 30)))
    level = ConversationRow(CELL, 9, 30, 0.8, 0.6, MIB, 2 * MIB, 1024.0, 1024.0)
    talks, turns = scenario_tables(ScenarioFigures(turns=(turn,), conversations=(level,)))
    assert "does not state what it found of each prompt" in turns.notes[0]
    (row,) = cells(turns)
    assert (row["turn"], row["prompt tokens"], row["said before tokens"]) == ("2", "384", "319")
    assert (row["found tokens"], row["TTFT p50 ms"], row["TTFT p95 ms"]) == ("-", "20.0", "20.0*")
    (row,) = cells(talks)
    assert (row["kept"], row["between turns mean"]) == ("75.0 %", "1.00 MiB")
    assert any("free to be taken" in note for note in talks.notes)
    for hits, words in ((None, "states no prefix cache"), (0.0, "its prefix cache is off")):
        bare = replace(level, hit_ratio=hits)
        (table,) = scenario_tables(ScenarioFigures(conversations=(bare,)))
        assert any(words in note for note in table.notes)


def test_a_run_of_many_lengths_from_directory_to_reports(tmp_path: Path) -> None:
    run = mixed(build_run(STEPS, levels=(32,), min_requests=(40,)), "decompose")
    path = write_run(run, tmp_path)
    summary = build_report(path)
    markdown = (path / "report.md").read_text()
    page = (path / "report.html").read_text()
    for text in (markdown, page):
        assert "Reserved KV memory that held tokens" in text
        assert "From one request at a time to a paged cache" in text
    assert "Step by step" in page
    assert "waterfall" not in markdown
    found = json.loads((path / "summary.json").read_text())["scenario"]
    assert [row["cell"]["backend"] for row in found["fragmentation"]] == ["one", "batched", "paged"]
    assert found["fragmentation"][1]["share"] == summary.scenario.fragmentation[1].share
    assert len(found["waterfalls"]) == 1
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=160))
    assert "Reserved KV memory that held tokens" in out.getvalue()
    assert "batching" in out.getvalue()
    # the same bytes, from the directory alone
    before = (path / "summary.json").read_bytes()
    build_report(path)
    assert (path / "summary.json").read_bytes() == before


def test_an_ordinary_run_has_no_such_tables(tmp_path: Path) -> None:
    path = write_run(build_run(levels=(1,), min_requests=(5,)), tmp_path)
    assert scenario_tables(build_report(path).scenario) == []
    assert json.loads((path / "summary.json").read_text())["scenario"] == {}
