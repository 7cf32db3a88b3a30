"""Every query parses with its types right, and every metric in it exists somewhere."""

from __future__ import annotations

import re

import pytest

from harness.nightly.outputs.openmetrics import openmetrics_night
from tests.dashboards.support import (
    BOARDS,
    ROOT,
    PanelQuery,
    board,
    filled,
    known_metrics,
    metric_names,
    queries,
    recorded,
    rules,
    sample_names,
)
from tests.nightly.outputs.nights import whole_night

QUERIES = [query for name in BOARDS for query in queries(name)]
NIGHTLY = re.compile(r"^\| `(kvknee_nightly_\w+)")


@pytest.fixture(scope="module")
def existing() -> frozenset[str]:
    return known_metrics() | recorded() | documented_nightly_metrics()


def documented_nightly_metrics() -> frozenset[str]:
    """The names that docs/dashboards.md asks a nightly job for."""
    lines = (ROOT / "docs" / "dashboards.md").read_text().splitlines()
    return frozenset(found[1] for line in lines if (found := NIGHTLY.match(line)))


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.id)
def test_panel_query(query: PanelQuery, existing: frozenset[str]) -> None:
    missing = metric_names(query.expr()) - existing
    assert not missing, f"{query.id} names {missing}, which nothing states"


@pytest.mark.parametrize(
    "rule", list(rules()), ids=lambda rule: rule.get("record") or rule["alert"]
)
def test_rule(rule: dict[str, str], existing: frozenset[str]) -> None:
    missing = metric_names(rule["expr"]) - existing
    assert not missing, f"{missing} is stated by nothing"


@pytest.mark.parametrize("name", BOARDS)
def test_variables_ask_for_labels_of_existing_metrics(name: str, existing: frozenset[str]) -> None:
    for variable in board(name)["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.+), \w+\)", variable["definition"])
        assert found, variable["definition"]
        (names,) = metric_names(filled(found[1]))
        assert set(names.split("|")) <= existing


def test_every_nightly_metric_is_drawn_and_documented() -> None:
    drawn = {n for query in queries("nightly") for n in metric_names(query.expr())}
    assert drawn == documented_nightly_metrics()


def test_the_job_writes_every_nightly_metric_and_no_other() -> None:
    assert sample_names(openmetrics_night(whole_night())) == documented_nightly_metrics()


def test_every_recording_rule_is_used() -> None:
    """A rule that nothing reads costs a query every second."""
    used = {name for query in QUERIES for name in metric_names(query.expr())}
    used |= {name for rule in rules() for name in metric_names(rule["expr"])}
    assert recorded() <= used


def test_a_wrong_type_is_found() -> None:
    with pytest.raises(ValueError, match="expected type matrix"):
        metric_names("rate(up)")


def test_names_are_found_wherever_they_stand() -> None:
    expr = (
        'sum by (x) (rate(a_total[5s]) and on (x) b{y="1"}) / (max_over_time((c > 0)[1m:1s]) - -d)'
    )
    assert metric_names(expr) == {"a_total", "b", "c", "d"}
    assert metric_names('topk(scalar(e), {__name__=~"f|g"})') == {"e", "f|g"}
