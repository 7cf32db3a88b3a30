"""The night as JUnit XML: valid, counted right, and red when it should be."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from harness.nightly.gate_types import VerdictName
from harness.nightly.night_types import Night, NightRun
from harness.nightly.outputs.junit import junit_bytes
from tests.nightly.outputs.nights import (
    ASKED,
    NIGHTS,
    hostile_night,
    interrupted_night,
    night,
    refused_night,
    whole_night,
)

#: element -> its attributes (required first, then optional) and children, by junit-10.xsd of
#: Jenkins' xUnit plugin (those that we use)
SCHEMA: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package"},
        {"properties", "testcase", "testsuite", "system-out", "system-err"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name"}, {"time", "classname"}, {"skipped", "error", "failure", "system-out"}),
    "skipped": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "failure": (set(), {"type", "message"}, set()),
}
#: the schema's SUREFIRE_TIME
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")


def parsed(made: Night) -> ET.Element:
    return ET.fromstring(junit_bytes(made))


def outcome(case: ET.Element) -> str:
    return next((child.tag for child in case), "passed")


def outcomes(made: Night) -> dict[str, str]:
    return {case.get("name", ""): outcome(case) for case in parsed(made).iter("testcase")}


@pytest.mark.parametrize("name", NIGHTS)
def test_every_night_is_valid(name: str) -> None:
    for element in parsed(NIGHTS[name]()).iter():
        required, optional, children = SCHEMA[element.tag]
        assert required <= set(element.keys()) <= required | optional, element.tag
        assert {child.tag for child in element} <= children, element.tag
        assert TIME.fullmatch(element.get("time", "0"))


@pytest.mark.parametrize("name", NIGHTS)
def test_the_sums_add_up(name: str) -> None:
    root = parsed(NIGHTS[name]())
    suites = root.findall("testsuite")
    for suite in suites:
        found = [outcome(case) for case in suite.findall("testcase")]
        kinds = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
        assert int(suite.get("tests", "")) == len(found) > 0
        assert all(int(suite.get(many, "")) == found.count(one) for many, one in kinds)
        times = [float(case.get("time", "")) for case in suite.findall("testcase")]
        assert float(suite.get("time", "")) == pytest.approx(sum(times), abs=1e-6)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp", ""))
    for name in ("tests", "failures", "errors"):
        assert int(root.get(name, "")) == sum(int(suite.get(name, "")) for suite in suites)
    total = sum(float(suite.get("time", "")) for suite in suites)
    assert float(root.get("time", "")) == pytest.approx(total, abs=1e-6)


def test_the_time_of_a_night_is_all_there() -> None:
    # two repeats of 1200.5 s, so 3600 - 2401 = 1199 s beside them
    root = parsed(night())
    assert float(root.get("time", "")) == pytest.approx(3600.0)
    job = root.find("testsuite/testcase")
    assert job is not None and float(job.get("time", "")) == pytest.approx(1199.0)


@pytest.mark.parametrize(
    ("name", "gated", "ungated"),
    [
        ("ok", "passed", "passed"),
        ("improved", "passed", "passed"),
        ("regressed", "failure", "skipped"),
        ("no comparable baseline", "skipped", "skipped"),
        ("insufficient samples", "error", "skipped"),
        ("unstable", "error", "skipped"),
    ],
)
def test_what_a_verdict_becomes(name: VerdictName, gated: str, ungated: str) -> None:
    for wanted, is_gated in ((gated, True), (ungated, False)):
        made = night([replace(ASKED[name], gated=is_gated)])
        root = parsed(made)
        case = next(c for c in root.iter("testcase") if "512+64" in c.get("name", ""))
        assert outcome(case) == wanted
        assert case.get("classname") == "gpu.short"
        assert ("not gated" in case.get("name", "")) is not is_gated
        for child in case:
            assert child.get("message", "").startswith(f"{name}: ")
            assert made.judged[0].verdict.reason in (child.text or "")


def test_the_job_and_its_runs() -> None:
    assert outcomes(interrupted_night()) == {"the night itself": "error"}
    assert outcomes(refused_night()) == {"the night itself": "error"}
    assert outcomes(night((), exit_code=0))["the night itself"] == "passed"
    torn = (NightRun("short", 0, 0, 5.0, "a"), NightRun("short", 1, 3, 5.0, None))
    kept = outcomes(night([ASKED["ok"]], exit_code=0, runs=torn))
    assert kept["repeat 1 ran to its end"] == "passed"
    # the other repeat was judged: the night is green
    assert kept["repeat 2 ran to its end"] == "skipped"
    lost = outcomes(night([ASKED["ok"]], exit_code=3, runs=torn))
    assert lost["repeat 2 ran to its end"] == "error"


def test_a_suite_for_each_run() -> None:
    names = [suite.get("name") for suite in parsed(whole_night()).findall("testsuite")]
    assert names == ["gpu.job", "gpu.short", "gpu.long"]


def test_characters_that_xml_forbids_are_gone() -> None:
    text = junit_bytes(hostile_night()).decode("utf-8")
    assert "\\x1b[31m" in text and "&lt;script&gt;" in text
    ET.fromstring(text.encode())
