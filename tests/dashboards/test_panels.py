"""What every panel must have, and what Grafana's published schemas say of the files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.dashboards.support import BOARDS, ROOT, board, panels


def schema_folder(environment: Mapping[str, str]) -> Path:
    """The folder that the variable names; set to nothing it counts as not set."""
    named = environment.get("KVKNEE_GRAFANA_SCHEMAS")
    return Path(named) if named else ROOT.parent / "shared" / "schemas"


#: Grafana's JSON schemas lie beside the checkout where somebody put them
SCHEMAS = schema_folder(os.environ)
ABSENT = f"no Grafana schemas in {SCHEMAS}: set KVKNEE_GRAFANA_SCHEMAS to their folder"
PANELS = [
    pytest.param(panel, id=f"{name}-{panel['title']}") for name in BOARDS for panel in panels(name)
]


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["title"]
    what, _, empty = panel["description"].partition("\n\nEmpty: ")
    assert len(what) > 40, "a description explains"
    assert len(empty) > 20
    if panel["type"] == "stat":
        # a single figure has room for two words
        assert 3 <= len(defaults["noValue"]) <= 12
    else:
        assert defaults["noValue"] == empty, "the empty state is explained in both places"
    assert defaults["unit"]
    assert defaults["thresholds"]["steps"][0]["value"] is None
    assert panel["datasource"] == {"type": "prometheus", "uid": "kvknee-prometheus"}


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_a_legend(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        assert target["legendFormat"] or target["format"] == "table"
    if "legend" in panel["options"] and panel["type"] != "heatmap":
        assert panel["options"]["legend"]["showLegend"] is True


@pytest.mark.parametrize("name", BOARDS)
def test_ids_are_unique_and_nothing_overlaps(name: str) -> None:
    found = board(name)["panels"]
    ids = [panel["id"] for panel in found]
    assert len(set(ids)) == len(ids)
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
    for one, other in combinations(found, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


@pytest.mark.parametrize(
    ("named", "folder"),
    [(None, "shared/schemas"), ("", "shared/schemas"), ("/some/where", "/some/where")],
)
def test_where_the_schemas_are_looked_for(named: str | None, folder: str) -> None:
    environment = {} if named is None else {"KVKNEE_GRAFANA_SCHEMAS": named}
    assert schema_folder(environment) == ROOT.parent / folder


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (apart_x or apart_y)


def test_overlap_is_seen() -> None:
    first = {"x": 0, "y": 0, "w": 12, "h": 8}
    assert overlap(first, {"x": 11, "y": 7, "w": 2, "h": 2})
    assert not overlap(first, {"x": 12, "y": 0, "w": 12, "h": 8})
    assert not overlap(first, {"x": 0, "y": 8, "w": 24, "h": 1})


def test_titles_are_unique_within_a_dashboard() -> None:
    for name in BOARDS:
        titles = [panel["title"] for panel in panels(name)]
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", ["run", "capacity"])
def test_runs_can_be_chosen_and_are_marked(name: str) -> None:
    found = board(name)
    assert [item["name"] for item in found["templating"]["list"]] == ["backend", "run"]
    assert [item["name"] for item in found["annotations"]["list"]] == ["Runs", "Levels", "Alerts"]


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason=ABSENT)
@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_schema_of_a_dashboard(name: str) -> None:
    whole = schema("dashboard")
    assert whole is not None
    # "Anything" has become "any object" in the published schema, yet Grafana's own matchers by
    # name and most field settings are texts and numbers
    whole["definitions"]["MatcherConfig"]["properties"]["options"] = {}
    whole["definitions"]["DynamicConfigValue"]["properties"]["value"] = {}
    jsonschema.validate(board(name), whole)


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason=ABSENT)
@pytest.mark.parametrize("panel", PANELS)
def test_grafanas_schema_of_a_panel(panel: dict[str, Any]) -> None:
    whole = schema(panel["type"])
    if whole is None:
        pytest.skip(f"Grafana's schema of {panel['type']} is not in {SCHEMAS}")
    jsonschema.validate(panel["options"], {**whole, "$ref": "#/definitions/Options"})
    if "FieldConfig" in whole["definitions"]:
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        jsonschema.validate(custom, {**whole, "$ref": "#/definitions/FieldConfig"})


def schema(kind: str) -> dict[str, Any] | None:
    """A schema of the folder by its name; None where it has none."""
    path = SCHEMAS / f"{kind.replace('-', '')}.jsonschema.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found
