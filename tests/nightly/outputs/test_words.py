"""The verdict's line, and how figures read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.nightly.gate_types import Verdict
from harness.nightly.metrics import METRICS
from harness.nightly.outputs.headline import headline
from harness.nightly.outputs.sections import alarms, moved, notes, rest_text
from harness.nightly.outputs.words import (
    change_text,
    clear_since,
    interval_text,
    since_text,
    threshold_text,
    value_text,
)
from harness.nightly.sight import ChangePoint
from tests.nightly.outputs.nights import (
    ASKED,
    TONIGHT,
    Asked,
    first_nights,
    interrupted_night,
    judged,
    night,
    refused_night,
    whole_night,
)


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("ttft_p95_s", 0.48, "480 ms"),
        ("tpot_p50_s", 0.02857, "28.6 ms"),
        ("output_tokens_per_s", 1234.5, "1,234 tok/s"),
        ("memory_knee", 18.0, "18 requests"),
        ("memory_knee", 17.999999999999996, "18 requests"),
        ("kv_bytes_per_token", 1088.0, "1,088 B"),
        ("failure_rate", 0.012, "1.20 %"),
        ("failure_rate", 0.0, "0 %"),
        ("ttft_p95_s", None, "-"),
        ("ttft_p95_s", math.inf, "-"),
    ],
)
def test_a_figure_reads_in_its_unit(metric: str, value: float | None, text: str) -> None:
    assert value_text(METRICS[metric], value) == text


def test_changes_keep_their_sign_and_a_threshold_has_that_of_the_worse() -> None:
    lower, higher, share = (METRICS[n] for n in ("ttft_p95_s", "goodput_rps", "failure_rate"))
    assert change_text(lower, 0.123) == "+12.3 %"
    assert change_text(share, 0.012) == "+1.2 points"
    assert change_text(higher, None) == "-"

    def limit(name: str) -> str:
        return threshold_text(Verdict("c", name, "ok", True, "", threshold=0.052))

    assert [limit(m.name) for m in (lower, higher, share)] == ["+5.2 %", "-5.2 %", "+5.2 points"]
    said = Verdict("c", lower.name, "ok", True, "", low=-0.01, high=0.1)
    assert interval_text(said) == "-1.0 to +10.0"
    assert interval_text(replace(said, high=math.nan)) == "-"


def test_a_regression_is_told_whole() -> None:
    # eighteen ordinary nights, then six at + 25 %, which were taken into the baseline
    item = judged([Asked(tonight=1.25, nights=90, like_tonight=3)])[0]
    item = replace(item, since=ChangePoint("n087", 0.25, 0.001))
    line = headline(replace(night(), judged=(item,))).line
    assert line.startswith("REGRESSED: short paged 512+64 c16: TTFT p95 +2")
    assert " ms to " in line and "95 % interval +" in line and "called from +5." in line
    assert line.endswith(", since night n087 (p 0.001)")


def test_since_tonight_and_when_it_is_not_said() -> None:
    item = judged([ASKED["regressed"]])[0]
    assert since_text(replace(item, since=ChangePoint(TONIGHT, 0.2, 0.004))) == (
        "since tonight (p 0.004)"
    )
    unsaid = [
        None,
        ChangePoint("n050", 0.2, 0.2),  # not clear
        ChangePoint("n050", -0.2, 0.001),  # better since then: that is not this regression
    ]
    assert [since_text(replace(item, since=since)) for since in unsaid] == ["", "", ""]
    # what did not move has no night since which it did
    fine = replace(judged([ASKED["ok"]])[0], since=ChangePoint("n050", 0.01, 0.001))
    fine = replace(fine, verdict=replace(fine.verdict, change=0.01))
    assert clear_since(fine) is None


def test_the_worst_alarm_comes_first_and_the_others_follow() -> None:
    made = night([Asked(tonight=1.15), Asked("tpot_p95_s", tonight=1.4), ASKED["ok"]])
    assert [item.series.metric.name for item in alarms(made)] == ["tpot_p95_s", "ttft_p95_s"]
    assert "TPOT p95 +40." in headline(made).text and headline(made).text.endswith("1 more, below")
    assert [line[:50] for line in notes(made)] == [
        "regressed: short paged 512+64 c16: TTFT p95 +15.0 "[:50]
    ]


def test_an_improvement_is_never_worse() -> None:
    # E107: lower is better and 34 % lower is an improvement, whatever its sign
    made = night([Asked("ttft_p50_s", tonight=0.66)], exit_code=0)
    assert made.judged[0].verdict.name == "improved" and alarms(made) == ()
    assert headline(made).line == "OK: none of 1 gated figure became worse"
    assert any("too good to be believed" in line for line in notes(made))
    assert "-34." in notes(made)[0]


def test_the_first_nights_say_how_many_are_missing() -> None:
    text = headline(first_nights()).line
    assert text.startswith("NO VERDICT: 2 of 2 gated figures cannot be judged: no comparable")
    # two are stored and tonight is the third
    assert "2 comparable nights, 5 are needed" in text and "2 more nights are needed" in text
    one, last = (night([Asked(nights=n)], exit_code=2) for n in (3, 4))
    assert "1 more night is needed" in headline(one).line
    assert "with tonight there are enough, the next one is judged" in headline(last).line


@pytest.mark.parametrize("name", ["insufficient samples", "unstable"])
def test_no_verdict_says_why_and_what_to_do(name: str) -> None:
    made = night([ASKED["ok"], ASKED[name]], exit_code=2)  # type: ignore[index]
    text = headline(made).line
    assert text.startswith(f"NO VERDICT: 1 of 2 gated figures cannot be judged: {name} (")
    assert made.judged[1].verdict.reason in text and "more repeats" in text


def test_a_night_that_did_not_run_says_why() -> None:
    assert "preflight: the machine is not idle" in headline(refused_night()).line
    assert headline(interrupted_night()).line == (
        "FAILED: the job itself failed: interrupted: SIGTERM after 12 s"
    )
    assert headline(night((), exit_code=3)).line == "FAILED: the job itself failed"
    assert headline(night((), exit_code=0)).line == "OK: no figure is gated"
    assert headline(night((), exit_code=1)).line == "REGRESSED: a gated figure became worse"
    assert headline(night((), exit_code=2)).line.endswith("measured; see the events")


def test_all_that_moved_is_listed_not_the_first_fifty() -> None:
    # E106
    items = [Asked(level=n, gated=False, tonight=1.3) for n in range(1, 61)]
    made = night([ASKED["ok"], *items], exit_code=0)
    assert len(moved(made)) == 60 and rest_text(made) == ""
    assert rest_text(whole_night()).startswith("18 others, not gated: 15 ok")
