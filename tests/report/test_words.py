from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.run import analyse
from harness.analysis.verdict_types import BackendVerdict, Knee, SloMiss
from harness.report.words import knee_text, prediction_text, slo_text, verdict_line
from harness.workload import Slo
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run

SLO = Slo(ttft_s=0.5, tpot_s=0.05)


@pytest.fixture(scope="module")
def verdict() -> BackendVerdict:
    run = build_run((PAGED,), (16, 32), (100, 100))
    return analyse(run.manifest, run.records, run.events, run.series).verdicts[0]


def with_capacity(verdict: BackendVerdict, *facts: Any) -> BackendVerdict:
    status, last_good, first_bad, cause = facts
    return replace(verdict, capacity=Knee("capacity", status, last_good, first_bad, cause, ()))


def test_bracketed(verdict: BackendVerdict) -> None:
    assert verdict_line(verdict, SLO) == (
        "paged: holds 16 at 512+128 tokens (knee between 16 and 32), "
        "KV-bound, predicted 25; meets TTFT p95 500 ms and TPOT p95 50 ms up to 16"
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            ("below_first", None, 16.0, "scheduler_limit"),
            "does not hold 16, the lowest level judged, at 512+128 tokens, bound by max_num_seqs",
        ),
        (
            ("not_reached", 32.0, None, None),
            "holds 32, the highest level judged, at 512+128 tokens (no knee reached), predicted",
        ),
        (
            ("no_verdict", None, None, None),
            "no verdict on what it holds at 512+128 tokens (nothing was measured)",
        ),
    ],
)
def test_other_outcomes(verdict: BackendVerdict, facts: tuple[object, ...], words: str) -> None:
    assert words in verdict_line(with_capacity(verdict, *facts), SLO)


def test_a_missed_slo_is_said(verdict: BackendVerdict) -> None:
    missed = replace(verdict, latency=Knee("latency", "below_first", None, 16.0, "compute", ()))
    both = SloMiss(16.0, 0.5, 100, ("TTFT", "TPOT"))
    assert verdict_line(replace(missed, slo_miss=both), SLO).endswith(
        "; misses TTFT 500 ms and TPOT 50 ms even at 16: 50.0 % of 100 requests met "
        "TTFT 500 ms and TPOT 50 ms (95 % must)"
    )
    # 11 of 12 is below 95 % while every p95 may be within its limit; 12 are few for a p95
    few = SloMiss(16.0, 11 / 12, 12, ("TPOT",))
    assert verdict_line(replace(missed, slo_miss=few), SLO).endswith(
        "; misses TPOT 50 ms even at 16: 91.7 %* of 12 requests met "
        "TTFT 500 ms and TPOT 50 ms (95 % must)"
    )
    # a search that was asked for another share says that one
    asked = replace(missed, slo_miss=few, slo_share=0.9)
    assert verdict_line(asked, SLO).endswith("(90 % must)")
    strict = replace(asked, slo_share=0.999)
    assert verdict_line(strict, SLO).endswith("(99.9 % must)")
    assert verdict_line(replace(verdict, slo_share=0.9), SLO).endswith(
        "meets TTFT p90 500 ms and TPOT p90 50 ms up to 16"
    )
    none = replace(verdict, latency=Knee("latency", "no_verdict", None, None, None, ()))
    assert "TTFT" not in verdict_line(none, SLO)


def test_slo_in_words() -> None:
    assert slo_text(Slo(ttft_s=0.5, tpot_s=0.05, e2e_s=2.0)) == (
        "TTFT 500 ms, TPOT 50 ms and E2E 2 s"
    )
    assert slo_text(Slo(tpot_s=0.0255)) == "TPOT 25.5 ms"
    assert slo_text(Slo()) == ""


def test_knees_in_words() -> None:
    found = Knee("memory", "bracketed", 16.0, 32.0, "kv_memory", ())
    assert knee_text(found) == "between 16 and 32, KV memory"
    assert knee_text(replace(found, status="not_reached", last_good=32.0)) == (
        "not reached up to 32"
    )
    assert knee_text(replace(found, status="below_first")) == "below 32, KV memory"
    assert knee_text(replace(found, status="no_verdict")) == "no verdict"


def test_the_prediction_in_words(verdict: BackendVerdict) -> None:
    assert prediction_text(verdict).endswith("so 32 should be the first bad level, and it is.")
    early = replace(
        with_capacity(verdict, "bracketed", 4.0, 16.0, "kv_memory"), prediction_holds=False
    )
    assert prediction_text(early).endswith("32 should be the first bad level, but 16 was.")
    none = replace(with_capacity(verdict, "not_reached", 32.0, None, None), prediction_holds=False)
    assert prediction_text(none).endswith("32 should be the first bad level, but none was.")
    untested = replace(none, predicted_first_bad=None, prediction_holds=None)
    assert "nothing tests that" in prediction_text(untested)
    assert prediction_text(replace(verdict, predicted=None)) == ""
    absent = replace(verdict, predicted=None, no_prediction="several groups")
    assert prediction_text(absent) == "No prediction: several groups."
    assert "predicted" not in verdict_line(absent, SLO)


def test_an_interval_takes_the_brackets_place(verdict: BackendVerdict) -> None:
    sure = Knee("capacity", "bracketed", 18.0, 19.0, "kv_memory", (), interval=(17.0, 19.0))
    assert verdict_line(replace(verdict, capacity=sure), Slo(ttft_s=0.5)) == (
        "paged: holds 18 at 512+128 tokens (95 % interval 17-19), KV-bound, predicted 25; "
        "meets TTFT p95 500 ms up to 16"
    )
