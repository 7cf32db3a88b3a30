"""A search's interval stands at the knee of the same backend; a verified level has no knee."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.run import analyse
from harness.analysis.searched import searched_verdicts
from harness.analysis.verdict_types import BackendVerdict
from harness.plan.search_types import VERIFIED, Found
from harness.report.words import verdict_line
from harness.workload import Slo
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run

SLO = Slo(ttft_s=0.5, tpot_s=0.05)


@pytest.fixture(scope="module")
def verdict() -> BackendVerdict:
    run = build_run((PAGED,), (16, 32), (100, 100))
    return analyse(run.manifest, run.records, run.events, run.series).verdicts[0]


def found(verdict: BackendVerdict, **changed: object) -> Found:
    name = verdict.backend.name
    item = Found(name, "capacity", "found", 16.0, 32.0, 15.0, 18.0, "kv_memory")
    return replace(item, **changed)


def test_the_interval_takes_the_brackets_place(verdict: BackendVerdict) -> None:
    (shown,) = searched_verdicts([verdict], [found(verdict)])
    assert shown.capacity.interval == (15.0, 18.0)
    assert "holds 16 at 512+128 tokens (95 % interval 15-18)" in verdict_line(shown, SLO)


@pytest.mark.parametrize(
    "changed",
    [{"low": None}, {"high": None}, {"last_good": 15.0}, {"goal": "slo"}, {"backend": ""}],
)
def test_none_where_it_is_open_or_of_something_else(
    verdict: BackendVerdict, changed: dict[str, object]
) -> None:
    assert searched_verdicts([verdict], [found(verdict, **changed)]) == (verdict,)


def test_what_was_verified_is_no_knee_of_its_own(verdict: BackendVerdict) -> None:
    again = replace(verdict, variant=VERIFIED)
    assert len(searched_verdicts([verdict, again], [found(verdict)])) == 1
    # a variant of that name without a search is somebody's own
    assert searched_verdicts([verdict, again], []) == (verdict, again)
