"""The kinds of panel, each with what a panel must have: unit, description, thresholds, and
what it says while it is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import statetimeline as timeline
from grafana_foundation_sdk.models import common as c
from grafana_foundation_sdk.models import dashboard as d
from grafana_foundation_sdk.models import heatmap as h
from grafana_foundation_sdk.models.prometheus import Dataquery, PromQueryFormat

from dashboards.boards.queries import LATENCY_STEP, Query

DATA_SOURCE = c.DataSourceRef(type_val="prometheus", uid="kvknee-prometheus")

#: (value from which it holds, colour); None: from the bottom
Steps = Sequence[tuple[float | None, str]]
CALM: Steps = ((None, "green"),)
#: from here on the KV memory counts as full, in the alerts too
KV_STEPS: Steps = ((None, "green"), (0.8, "yellow"), (0.95, "red"))

#: The usual names of the backends, so that they look alike in all panels.
BACKEND_COLOURS = {"paged": "blue", "contiguous": "orange"}
DASHES = {"fill": "dash", "dash": [8, 8]}
DOTS = {"fill": "dot", "dash": [1, 6]}


@dataclass(frozen=True)
class About:
    """What every panel says of itself."""

    title: str
    description: str
    #: Grafana's id of the unit
    unit: str
    #: said while there is no data: why, and what to do
    empty: str
    steps: Steps = CALM
    #: the same where a panel has room for two words; the description keeps the whole
    short: str | None = None


def lines(
    about: About,
    *queries: Query,
    maximum: float | None = None,
    limit_line: bool = False,
) -> d.Panel:
    """Series over time; ``limit_line`` draws the thresholds as dashed lines."""
    builder = (
        timeseries.Panel()
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.MULTI))
        .line_width(1.5)
        .fill_opacity(0)
        .show_points(c.VisibilityMode.NEVER)
        # a gap of more than ten scrapes is a gap
        .span_nulls(10_000)
        .min(0)
    )
    if limit_line:
        style = common.GraphThresholdsStyleConfig().mode(c.GraphThresholdsStyleMode.DASHED)
        builder.thresholds_style(style)
    if maximum is not None:
        builder.max(maximum)
    panel = dressed(builder.build(), about, queries)
    _override_by_regexp(panel, "^SLO", {"custom.lineStyle": DASHES, "color": _fixed("red")})
    for name, colour in BACKEND_COLOURS.items():
        _override_by_regexp(panel, f"^{name}", {"color": _fixed(colour)})
    return panel


def number(
    about: About, *queries: Query, mappings: Mapping[str, tuple[str, str]] | None = None
) -> d.Panel:
    """The latest value of each series, its course behind it.

    ``mappings``: value -> (text, colour) that stand for it.
    """
    builder = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(c.BigValueGraphMode.AREA)
        .text_mode(c.BigValueTextMode.VALUE_AND_NAME)
        .orientation(c.VizOrientation.HORIZONTAL)
        .justify_mode(c.BigValueJustifyMode.AUTO)
    )
    if mappings:
        builder.mappings(_value_mappings(mappings))
    return dressed(builder.build(), about, queries)


def heat(about: About, expr: str, *, repeat: str) -> d.Panel:
    """A histogram over time, once for each value of the variable ``repeat``."""
    builder = (
        heatmap.Panel()
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(about.unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(h.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(h.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .cell_gap(1)
        # an empty bucket is no colour
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .show_value(c.VisibilityMode.NEVER)
        .repeat(repeat)
        .repeat_direction("h")
        .max_per_row(2)
    )
    query = Query(expr, legend="{{le}}", format="heatmap", step=LATENCY_STEP)
    return dressed(builder.build(), about, [query])


def states(about: About, *queries: Query, mappings: Mapping[str, tuple[str, str]]) -> d.Panel:
    """Which state each series is in, over time."""
    builder = (
        timeline.Panel()
        .merge_values(True)
        .show_value(c.VisibilityMode.AUTO)
        .row_height(0.8)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(c.TooltipDisplayMode.SINGLE))
        .mappings(_value_mappings(mappings))
    )
    return dressed(builder.build(), about, queries)


def quantile_styles(panel: d.Panel) -> d.Panel:
    """p50 dotted, p95 plain, p99 dashed; the backend has the colour."""
    _override_by_regexp(panel, "p50$", {"custom.lineStyle": DOTS})
    _override_by_regexp(panel, "p99$", {"custom.lineStyle": DASHES})
    return panel


def theory_style(panel: d.Panel) -> d.Panel:
    """What a formula predicts is dashed; what was measured is a plain line."""
    _override_by_regexp(panel, "theory|pool", {"custom.lineStyle": DASHES})
    return panel


def override_by_name(panel: d.Panel, name: str, properties: Mapping[str, object]) -> None:
    """Settings of one field, by its name."""
    _override(panel, "byName", name, properties)


def _override_by_regexp(panel: d.Panel, pattern: str, properties: Mapping[str, object]) -> None:
    _override(panel, "byRegexp", f"/{pattern}/", properties)


def _override(panel: d.Panel, matcher: str, options: str, properties: Mapping[str, object]) -> None:
    config = panel.field_config or d.FieldConfigSource()
    panel.field_config = config
    config.overrides.append(
        d.DashboardFieldConfigSourceOverrides(
            matcher=d.MatcherConfig(id_val=matcher, options=options),
            properties=[d.DynamicConfigValue(id_val=k, value=v) for k, v in properties.items()],
        )
    )


def transformed(panel: d.Panel, *steps: tuple[str, Mapping[str, object]]) -> d.Panel:
    """The panel with Grafana's transformations, as (id, options), in their order."""
    panel.transformations = [d.DataTransformerConfig(id_val=k, options=v) for k, v in steps]
    return panel


def dressed(panel: d.Panel, about: About, queries: Sequence[Query]) -> d.Panel:
    """The panel with its text, unit, thresholds and queries."""
    panel.title = about.title
    panel.description = f"{about.description}\n\nEmpty: {about.empty}"
    panel.datasource = DATA_SOURCE
    panel.targets = [_target(query, place) for place, query in enumerate(queries)]
    config = panel.field_config or d.FieldConfigSource()
    defaults = config.defaults or d.FieldConfig()
    defaults.unit = about.unit
    defaults.no_value = about.short or about.empty
    defaults.thresholds = d.ThresholdsConfig(
        mode=d.ThresholdsMode.ABSOLUTE,
        steps=[d.Threshold(value=value, color=colour) for value, colour in about.steps],
    )
    config.defaults = defaults
    panel.field_config = config
    return panel


def _target(query: Query, place: int) -> Dataquery:
    built = (
        prometheus.Dataquery()
        .expr(query.expr)
        .ref_id(chr(ord("A") + place))
        .legend_format(query.legend)
        .format(PromQueryFormat(query.format))
        .datasource(DATA_SOURCE)
    )
    if query.step:
        built.interval(query.step)
    return (built.instant() if query.instant else built.range()).build()


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(c.LegendDisplayMode.LIST)
        .placement(c.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _value_mappings(mappings: Mapping[str, tuple[str, str]]) -> list[d.ValueMapping]:
    options = {
        value: d.ValueMappingResult(text=text, color=colour, index=place)
        for place, (value, (text, colour)) in enumerate(mappings.items())
    }
    return [d.ValueMap(options=options)]


def _fixed(colour: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": colour}
