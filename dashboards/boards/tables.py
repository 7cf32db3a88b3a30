"""Panels over *levels* instead of time: a row, or a point, for each level of each backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, table, xychart
from grafana_foundation_sdk.models import common as c
from grafana_foundation_sdk.models import dashboard as d
from grafana_foundation_sdk.models import xychart as x

from dashboards.boards.panels import (
    BACKEND_COLOURS,
    About,
    dressed,
    override_by_name,
    transformed,
)
from dashboards.boards.queries import level_table

#: what a table calls the label `level`
LEVEL = "in flight"


@dataclass(frozen=True)
class Column:
    """One figure of a table."""

    title: str
    expr: str
    unit: str
    decimals: int | None = None


def level_rows(about: About, columns: Sequence[Column]) -> d.Panel:
    """A table: backend, level, and a column per figure."""
    builder = table.Panel().show_header(True).cell_height(c.TableCellHeight.SM)
    panel = dressed(builder.build(), about, [level_table(column.expr) for column in columns])
    # the data source names the value of query A "Value #A"
    names = {f"Value #{chr(ord('A') + i)}": column.title for i, column in enumerate(columns)}
    transformed(
        panel,
        ("merge", {}),
        _number_of_level(),
        (
            "organize",
            {
                "excludeByName": {"Time": True},
                "renameByName": {**names, "level": LEVEL},
                "indexByName": {"backend": 0, "level": 1}
                | {name: i + 2 for i, name in enumerate(names)},
            },
        ),
        ("sortBy", {"sort": [{"field": LEVEL}]}),
    )
    override_by_name(panel, LEVEL, {"unit": "none"})
    for column in columns:
        properties: dict[str, object] = {"unit": column.unit}
        if column.decimals is not None:
            properties["decimals"] = column.decimals
        override_by_name(panel, column.title, properties)
    return panel


def against_level(about: About, expr: str) -> d.Panel:
    """A curve per backend: a figure against the requests in flight."""
    builder = (
        xychart.Panel()
        # in every frame x is the first field with numbers, the level, and y the other one;
        # a manual mapping would need a frame by its index, so a known number of backends
        .mapping(x.SeriesMapping.AUTO)
        .series([])
        .show(x.XYShowMode.POINTS_AND_LINES)
        .point_size(xychart.XychartFieldConfigPointSize().fixed(7))
        .line_width(2)
        .legend(
            common.VizLegendOptions()
            .display_mode(c.LegendDisplayMode.LIST)
            .placement(c.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.SINGLE))
        .min(0)
        .display_name("${__field.labels.backend}")
    )
    panel = dressed(builder.build(), about, [level_table(expr)])
    transformed(
        panel,
        _number_of_level(),
        ("organize", {"excludeByName": {"Time": True}}),
        ("sortBy", {"sort": [{"field": "level"}]}),
        # one frame per backend, and the backend as a label of its figures
        (
            "partitionByValues",
            {"fields": ["backend"], "keepFields": False, "naming": {"asLabels": True}},
        ),
    )
    override_by_name(panel, "level", {"displayName": LEVEL, "unit": "none"})
    for name, colour in BACKEND_COLOURS.items():
        override_by_name(panel, name, {"color": {"mode": "fixed", "fixedColor": colour}})
    return panel


def _number_of_level() -> tuple[str, Mapping[str, object]]:
    """Labels are text; a level is sorted and drawn as a number."""
    conversion = {"targetField": "level", "destinationType": "number"}
    return ("convertFieldType", {"conversions": [conversion], "fields": {}})
