"""The night for programs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from harness.nightly.night_types import Night
from harness.nightly.outputs.night_json import NIGHT_SCHEMA, night_bytes
from tests.nightly.outputs.nights import ASKED, HOSTILE, NIGHTS, hostile_night, night, whole_night

NAMES = [
    *("schema", "night_id", "suite", "started_wall_s", "seconds", "kvknee_version", "machine"),
    *("exit_code", "outcome", "headline", "false_alarm_rate", "min_nights", "baseline_nights"),
    *("series", "runs", "events", "setup_changes"),
]
SERIES = [
    *("run", "backend", "model", "level", "cell", "label", "metric", "better", "is_share"),
    *("gated", "verdict", "reason", "alarm", "ask_new_baseline", "tonight", "repeats"),
    *("requests", "baseline", "nights", "other_nights", "change", "change_low", "change_high"),
    *("worse", "threshold", "smallest_regression", "smallest_regression_power"),
    *("night_spread", "since"),
]


def read(made: Night) -> dict[str, Any]:
    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found: dict[str, Any] = json.loads(night_bytes(made), parse_constant=refused)
    return found


@pytest.mark.parametrize("name", NIGHTS)
def test_names_are_stable(name: str) -> None:
    found = read(NIGHTS[name]())
    assert list(found) == NAMES and found["schema"] == NIGHT_SCHEMA == 1
    assert all(list(item) == SERIES for item in found["series"])
    assert night_bytes(NIGHTS[name]()).isascii()


def test_what_is_absent_is_null() -> None:
    names = list(ASKED)
    series = dict(zip(names, read(night())["series"], strict=True))
    missing = series["insufficient samples"]
    assert missing["tonight"] is missing["change"] is missing["requests"] is None
    assert missing["repeats"] == [] and missing["nights"] == 90
    fresh = series["no comparable baseline"]
    assert fresh["baseline"] is fresh["threshold"] is fresh["smallest_regression"] is None
    assert fresh["tonight"] == pytest.approx(0.029, rel=0.1)


def test_no_infinity_and_no_nan() -> None:
    made = night([ASKED["regressed"]])
    item = made.judged[0]
    broken = replace(
        item,
        verdict=replace(item.verdict, change=math.nan, threshold=math.inf, worse=-math.inf),
        sight=replace(item.sight, regression=math.inf),
    )
    (found,) = read(replace(made, judged=(broken,)))["series"]
    assert [found[n] for n in ("change", "threshold", "worse", "smallest_regression")] == [None] * 4


def test_a_night_whole() -> None:
    found = read(whole_night())
    assert (found["outcome"], found["exit_code"], found["suite"]) == ("REGRESSED", 1, "gpu")
    assert [run["exit_code"] for run in found["runs"]] == [0, 3, 1]
    assert found["runs"][1]["folder"] is None
    assert found["events"][0]["kind"] == "server restarted"
    (alarm,) = (item for item in found["series"] if item["alarm"])
    assert alarm["change"] == pytest.approx(0.25, abs=0.01)
    assert alarm["change_low"] < alarm["change"] < alarm["change_high"]
    assert alarm["since"]["night"] == found["night_id"] and alarm["since"]["clear"] is True


def test_words_of_others_stay_as_they_were() -> None:
    # but for a lone surrogate, which no JSON can hold
    assert read(hostile_night())["suite"] == HOSTILE.replace("\ud800", "\\ud800")
