"""``night.xml``: a night as JUnit XML, which CI servers show as tests. Pure.

There is no one standard; what stands here is valid by the schema of Jenkins' xUnit plugin
(``junit-10.xsd``), which others read too. A ``testsuite`` for each run of the suite, and one,
``<suite>.job``, for the night itself; a ``testcase`` for each repeat (it has the time) and for
each series.

=======================  ===========================  ============================
verdict                  gated                        not gated
=======================  ===========================  ============================
ok, improved             passed                       passed
regressed                **failure**                  skipped, with what moved
no comparable baseline   skipped: nothing is wrong,   skipped
                         the nights are collected
insufficient samples,    **error**: what should have  skipped
unstable                 been measured was not, and
                         a skipped test would hide it
                         for months
=======================  ===========================  ============================

A repeat that failed is an error when the night failed by itself (exit code 3), else skipped: the
other repeats were judged. The job is an error with exit code 3, and where it could judge nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from harness.errors import printable
from harness.nightly.night_types import Judged, Night, NightRun
from harness.nightly.outputs.headline import OUTCOMES, headline
from harness.nightly.outputs.sections import event_lines, row
from harness.nightly.outputs.words import moved_text, verdict_text

Outcome = Literal["passed", "failure", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """One test: ``kind`` is a short type, ``message`` what a list of tests shows."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    text: str = ""


def junit_bytes(night: Night) -> bytes:
    """The file's content, UTF-8."""
    suites = {f"{night.suite}.job": [_job(night)]}
    for run in night.runs:
        suites.setdefault(f"{night.suite}.{run.name}", []).append(_repeat(run, night))
    for item in night.judged:
        suites.setdefault(f"{night.suite}.{item.run}", []).append(_series(item))
    root = ET.Element("testsuites", {"name": legal(f"kvknee nightly {night.suite}")})
    _count(root, [case for cases in suites.values() for case in cases], skipped=False)
    for name, cases in suites.items():
        root.append(_suite(name, cases, night))
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def legal(text: str) -> str:
    """The text, its lines kept; what XML forbids (section 2.2, Char) becomes its escape."""
    # all that is printable is allowed there; control characters and lone surrogates are neither
    return "\n".join(map(printable, text.split("\n")))


def _suite(name: str, cases: list[Case], night: Night) -> ET.Element:
    when = datetime.datetime.fromtimestamp(night.at_wall_s, datetime.UTC)
    # ISO 8601 without a zone, as Ant writes it; it is UTC
    stamp = when.strftime("%Y-%m-%dT%H:%M:%S")
    element = ET.Element("testsuite", {"name": legal(name), "timestamp": stamp})
    _count(element, cases, skipped=True)
    about = (("night", night.night_id), ("machine", night.machine))
    properties = ET.SubElement(element, "properties")
    for key, value in (*about, ("kvknee", night.kvknee_version)):
        ET.SubElement(properties, "property", {"name": key, "value": legal(value)})
    for case in cases:
        element.append(_case(name, case))
    return element


def _case(suite: str, case: Case) -> ET.Element:
    element = ET.Element(
        "testcase",
        {"name": legal(case.name), "classname": legal(suite), "time": f"{case.seconds:.3f}"},
    )
    if case.outcome != "passed":
        facts = {"type": case.kind, "message": legal(case.message)}
        ET.SubElement(element, case.outcome, facts).text = legal(case.text or case.message)
    return element


def _count(element: ET.Element, cases: list[Case], *, skipped: bool) -> None:
    """The sums; the schema has no ``skipped`` on the outermost element."""
    outcomes = [case.outcome for case in cases]
    element.set("tests", str(len(cases)))
    element.set("failures", str(outcomes.count("failure")))
    element.set("errors", str(outcomes.count("error")))
    if skipped:
        element.set("skipped", str(outcomes.count("skipped")))
    # of the rounded times, so that they add up as they stand
    element.set("time", f"{sum(round(case.seconds, 3) for case in cases):.3f}")


def _job(night: Night) -> Case:
    """The night itself; its time is what was not spent in the runs."""
    beside = max(night.seconds - sum(run.seconds for run in night.runs), 0.0)
    nothing = night.exit_code == 2 and not any(item.verdict.gated for item in night.judged)
    failed = night.exit_code not in OUTCOMES or night.exit_code == 3
    if not failed and not nothing:
        return Case("the night itself", "passed", beside)
    said = headline(night)
    events = "\n".join(event_lines(night))
    return Case("the night itself", "error", beside, said.word.lower(), said.text, events)


def _repeat(run: NightRun, night: Night) -> Case:
    name = f"repeat {run.repeat + 1} ran to its end"
    if run.exit_code == 0:
        return Case(name, "passed", run.seconds)
    message = f"exit code {run.exit_code}"
    where = f"{message}; see {run.folder}" if run.folder else f"{message}; it left no folder"
    outcome: Outcome = "error" if night.exit_code == 3 else "skipped"
    return Case(name, outcome, run.seconds, "run failed", message, where)


def _series(item: Judged) -> Case:
    verdict = item.verdict
    outcome = _outcome(item)
    cell, figure, *_ = row(item)
    name = f"{cell}: {figure}" if verdict.gated else f"{cell}: {figure} (not gated)"
    if outcome == "passed":
        return Case(name, outcome)
    message = f"{verdict_text(verdict)}: {verdict.reason}"
    if verdict.change is not None:
        message = f"{verdict_text(verdict)}: {moved_text(item)}"
    return Case(name, outcome, 0.0, verdict.name, message, f"{message}\n{verdict.reason}")


def _outcome(item: Judged) -> Outcome:
    name = item.verdict.name
    if name in ("ok", "improved"):
        return "passed"
    if not item.verdict.gated or name == "no comparable baseline":
        return "skipped"
    return "failure" if name == "regressed" else "error"
