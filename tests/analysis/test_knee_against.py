"""What speaks against the cause of a knee that was judged level by level."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from harness.analysis.knee import judge_backend
from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures
from harness.analysis.verdict_types import BackendVerdict
from harness.report.words import knee_evidence
from harness.workload import Slo
from tests.analysis.test_level_verdict import cell, counts
from tests.support.fake_server import PAGED, paged_info
from tests.support.run_builder import build_run

SLO = Slo(ttft_s=0.5, tpot_s=0.05)


@pytest.fixture(scope="module")
def template() -> CellFigures:
    run = build_run((PAGED,), (4,), (100,))
    return analyse(run.manifest, run.records, run.events, run.series).cells[0]


def judged(*cells: CellFigures) -> BackendVerdict:
    return judge_backend(paged_info(), cells, SLO)


def test_a_memory_knee_with_room_in_the_pool(template: CellFigures) -> None:
    starved = counts(starved=50, seated=5, waits=55)
    verdict = judged(cell(template, level=4), cell(template, "kv_memory", starved, 8, usage=0.5))
    assert (
        verdict.capacity.against
        == verdict.memory.against
        == (
            "the pool is never more than 50 % full",
            "requests wait while max_num_seqs run in 5 of 60 samples",
        )
    )
    assert knee_evidence(verdict.memory) == (
        "4: in words",
        "8: in words",
        "against KV memory: the pool is never more than 50 % full",
        "against KV memory: requests wait while max_num_seqs run in 5 of 60 samples",
    )


def test_nothing_against_it_is_said_where_it_was_looked_for(template: CellFigures) -> None:
    starved = counts(starved=50, waits=50)
    verdict = judged(cell(template, level=4), cell(template, "kv_memory", starved, 8, usage=1.0))
    assert verdict.memory.against == ()
    assert knee_evidence(verdict.memory)[-1] == "against KV memory: (nothing speaks against it)"
    # there is no knee, so no cause
    assert verdict.latency.against is None
    assert knee_evidence(verdict.latency) == verdict.latency.evidence


def test_the_repeat_that_is_bad_is_the_one_looked_at(template: CellFigures) -> None:
    good = cell(template, level=8)
    seats = cell(template, "scheduler_limit", counts(seated=40, starved=4, waits=44), 8)
    verdict = judged(
        cell(template, level=4),
        good,
        replace(seats, cell=msgspec.structs.replace(seats.cell, repeat=1)),
    )
    assert verdict.capacity.against == ("requests wait for KV memory in 4 of 60 samples",)


def test_compute_is_held_against_the_level_below(template: CellFigures) -> None:
    rates = {"slo_attainment": 0.5, "tpot_attainment": 0.5}
    verdict = judged(cell(template, level=4), cell(template, level=8, **rates))
    (line,) = verdict.latency.against or ()
    assert line.startswith("a token takes no longer than at a lower level")


def test_a_pool_that_is_not_stated_is_said_to_be_unknown(template: CellFigures) -> None:
    seats = cell(template, "scheduler_limit", counts(seated=40, waits=40), 8)
    verdict = judged(cell(template, level=4), replace(seats, memory=None))
    assert verdict.capacity.against == (
        "not known: how full the pool is, which the server does not state",
    )
    silent = replace(
        cell(template, level=8, slo_attainment=0.5, tpot_attainment=0.5),
        admission=replace(template.admission, counts=None),
    )
    assert "not known: whether requests are kept out" in (judged(silent).latency.against or ())
