from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as with_fields

from harness.analysis.run import analyse
from harness.nightly.figures import StoredFigure, run_figures
from harness.nightly.job.harvest import changed_setup, of_summary, once_a_run
from harness.nightly.job.plan import Repeat
from harness.nightly.setup import setup_facts
from tests.nightly.fake_night import suite_of
from tests.support.fake_records import cell_of
from tests.support.fake_server import PAGED, STATIC, FakeServer
from tests.support.run_builder import build_run, replace_manifest

KNEE = StoredFigure("short/paged", "short: paged 512+128", "memory_knee", 0, None, None)


def knees(values: Sequence[float | None]) -> list[StoredFigure]:
    return [replace(KNEE, repeat=i, value=value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((8, 8, 16), 8),
        ((16, 8, 16), 16),
        # of the middle two the lower: it was held in at least half of the repeats
        ((8, 8, 16, 16), 8),
        # two of five tell too little; three are enough
        ((8, None, None, 8, None), None),
        ((8, None, 16, 8, None), 8),
        # full at the lowest level: none is held, which is no gap
        ((0, 0, 4), 0),
    ],
)
def test_a_knee_is_one_figure_of_the_night(
    values: Sequence[float | None], expected: float | None
) -> None:
    latency = StoredFigure("short/paged", "short: paged 512+128 c4", "ttft_p50_s", 1, 0.1, 20)
    found = once_a_run([latency, *knees(values)])
    assert found == (latency, replace(KNEE, value=expected))


def test_a_server_full_at_the_first_level_holds_none_of_them() -> None:
    run = build_run((PAGED,), (4,), (20,))
    summary = analyse(run.manifest, run.records, run.events, run.series)
    verdict = summary.verdicts[0]
    full = replace(verdict, memory=replace(verdict.memory, status="below_first", last_good=None))
    found = [f for f in run_figures(replace(summary, verdicts=(full,))) if f.metric == KNEE.metric]
    assert [item.value for item in found] == [0.0]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        # 25 fit: level 16 might have been held, and 4 would read as a loss of three quarters
        (PAGED, None),
        # 8 fit, and 16 is not between what is held (8) and what is not (9)
        (STATIC, 8.0),
    ],
)
def test_a_lost_level_makes_no_lower_knee(server: FakeServer, expected: float | None) -> None:
    levels = (4, 8, 9, 16) if server is STATIC else (4, 16)
    run = build_run((server,), levels, tuple(100 for _ in levels))
    last = cell_of(server, 16)
    run.events = [
        e for e in run.events if (e.cell != last or e.kind == "level_start") and e.kind != "run_end"
    ]
    summary = analyse(run.manifest, run.records, run.events, run.series)
    assert summary.cells[-1].unjudged is not None
    found = [item.value for item in run_figures(summary) if item.metric == KNEE.metric]
    assert found == [expected]


def test_a_level_that_was_never_begun_makes_no_lower_knee() -> None:
    run = build_run((PAGED,), (4, 16), (100, 100))
    last = cell_of(PAGED, 16)
    run.events = [e for e in run.events if e.cell != last]
    run.records = [r for r in run.records if r.cell != last]
    summary = analyse(run.manifest, run.records, run.events, run.series)
    found = [item.value for item in run_figures(summary) if item.metric == KNEE.metric]
    assert found == [None]


def test_a_repeat_gets_the_suites_names_and_its_bad_cells_are_named(tmp_path: Path) -> None:
    repeat = Repeat(suite_of(tmp_path).run[0], 2)
    run = build_run((PAGED,), (4,), (20,))
    summary = analyse(run.manifest, run.records, run.events, run.series)
    found = of_summary(summary, repeat)
    assert {item.repeat for item in found.figures} == {2} and found.failed == ()
    assert found.places["short: paged 512+128 c4"].level == 4
    assert found.places["short: paged 512+128"].level is None
    bad = replace(summary, cells=(replace(summary.cells[0], unjudged="too few requests"),))
    found = of_summary(bad, repeat)
    assert found.failed == ("paged 512+128 c4: too few requests",)
    told = {item.metric for item in found.figures if item.value is not None}
    assert told == {"failure_rate", "memory_knee"}


def test_repeats_are_one_setup_whatever_their_seed() -> None:
    manifest = build_run((PAGED,), (4,), (20,)).manifest
    first, second = (
        setup_facts(
            replace_manifest(manifest, workload=with_fields(manifest.workload, seed=seed)), "paged"
        )
        for seed in (0, 1)
    )
    assert first == second and first["workload.hash"]
    assert changed_setup({"short/paged": first}, {"short/paged": second}) is None
    other = {**second, "backend.engine_version": "0.33"}
    said = changed_setup({"short/paged": first}, {"short/paged": other})
    assert said is not None and "backend.engine_version None (now 0.33)" in said
