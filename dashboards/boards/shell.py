"""What the dashboards share around their panels: the grid, variables, annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as d

from dashboards.boards.panels import DATA_SOURCE

#: columns of Grafana's grid
GRID = 24


@dataclass(frozen=True)
class Placed:
    """A panel and its size in cells of the grid."""

    panel: d.Panel
    width: int
    height: int


@dataclass(frozen=True)
class Section:
    """A heading and the panels below it, filled in from left to right."""

    title: str
    panels: Sequence[Placed]


@dataclass(frozen=True)
class Board:
    """A dashboard before it is laid out."""

    #: part of its address and the name of its file
    name: str
    title: str
    description: str
    sections: Sequence[Section]
    variables: Sequence[d.VariableModel]
    annotations: Sequence[d.AnnotationQuery]
    start: str
    #: how often it loads itself anew
    refresh: str


def built(board: Board) -> d.Dashboard:
    """The dashboard, its panels placed and numbered."""
    return d.Dashboard(
        uid=f"kvknee-{board.name}",
        title=board.title,
        description=board.description,
        tags=["kvknee"],
        timezone="browser",
        editable=False,
        graph_tooltip=d.DashboardCursorSync.CROSSHAIR,
        time=d.DashboardDashboardTime(from_val=board.start, to="now"),
        timepicker=d.TimePickerConfig(refresh_intervals=["1s", "5s", "10s", "30s", "1m", "5m"]),
        refresh=board.refresh,
        panels=_laid_out(board.sections),
        templating=d.DashboardDashboardTemplating(list_val=list(board.variables)),
        annotations=d.AnnotationContainer(list_val=list(board.annotations)),
        links=[_link_to_the_others()],
    )


def _laid_out(sections: Sequence[Section]) -> list[d.Panel | d.RowPanel]:
    found: list[d.Panel | d.RowPanel] = []
    y = 0
    for section in sections:
        heading = builders.Row(section.title).build()
        heading.grid_pos = d.GridPos(x=0, y=y, w=GRID, h=1)
        found.append(heading)
        y += 1
        left = height = 0
        for placed in section.panels:
            if left + placed.width > GRID:
                y, left, height = y + height, 0, 0
            placed.panel.grid_pos = d.GridPos(x=left, y=y, w=placed.width, h=placed.height)
            found.append(placed.panel)
            left, height = left + placed.width, max(height, placed.height)
        y += height
    for number, panel in enumerate(found, start=1):
        panel.id_val = number
    return found


def variable(
    name: str, label: str, query: str, description: str, *, newest_first: bool = False
) -> d.VariableModel:
    """A choice among the values of a label, ``All`` unless somebody chooses."""
    everything = d.VariableOption(selected=True, text=["All"], value=["$__all"])
    order = d.VariableSort.ALPHABETICAL_DESC if newest_first else d.VariableSort.ALPHABETICAL_ASC
    builder: Builder[d.VariableModel] = (
        builders.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATA_SOURCE)
        .query(query)
        .definition(query)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
        .refresh(d.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(order)
    )
    return builder.build()


def annotation(
    name: str, expr: str, colour: str, title: str, text: str, *, value_is_time: bool = False
) -> d.AnnotationQuery:
    """Marks on the time axis of all panels.

    ``value_is_time``: the query's value is the moment in milliseconds, not when it was asked.
    """
    builder = (
        builders.AnnotationQuery()
        .name(name)
        .datasource(DATA_SOURCE)
        .enable(True)
        .hide(False)
        .icon_color(colour)
        .expr(expr)
        # shorter than any level
        .step("1s")
        .title_format(title)
        .text_format(text)
        .use_value_for_time(value_is_time)
    )
    return builder.build()


def _link_to_the_others() -> d.DashboardLink:
    return (
        builders.DashboardLink("kvknee dashboards")
        .type(d.DashboardLinkType.DASHBOARDS)
        .tags(["kvknee"])
        .as_dropdown(False)
        .keep_time(True)
        .include_vars(True)
        .build()
    )
