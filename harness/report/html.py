"""``report.html``: one self-contained page; it works offline and on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from harness.analysis.summary_types import RunSummary
from harness.errors import printable
from harness.plan.search_reasons import Reasons
from harness.report.asked import lengths_text
from harness.report.backend_view import TableView, card_of, view_of
from harness.report.drawing import Drawing
from harness.report.figures import speed_figures
from harness.report.finding_groups import grouped
from harness.report.fit_lines import fit_lines
from harness.report.matrix import HEADS as MATRIX_HEADS
from harness.report.matrix import is_matrix, matrix_table
from harness.report.memory_figure import memory_figures
from harness.report.method import method_lines
from harness.report.reconcile_rows import explained_tables
from harness.report.rows import (
    THIN_NOTE,
)
from harness.report.scenario_tables import scenario_tables
from harness.report.search_lines import (
    REASONS,
    SEARCH_HEADS,
    SEARCH_METHOD,
    search_lines,
    search_reasons,
    search_rows,
)
from harness.report.soak import SOAK_HEADS, SOAK_METHOD, soak_line, soak_rows
from harness.report.summary_json import clean
from harness.report.tail_rows import tail_tables
from harness.report.timeline_figure import timeline_figures
from harness.report.units import level_text, utc_text
from harness.report.waterfall_figure import waterfall_figures
from harness.report.words import (
    AXES,
    shared_gpu_line,
    slo_text,
)
from harness.workload import Workload

_MOST_CURVES = 8


def html_report(summary: RunSummary) -> str:
    """The whole page. Everything that came from a server is escaped by the template."""
    manifest = summary.manifest
    page = (
        page_environment()
        .get_template("report.html")
        .render(
            css=Markup(template_text("report.css")),  # noqa: S704 - our own file, no user text
            run_id=manifest.run_id,
            status=manifest.status,
            version=manifest.kvknee_version,
            when=utc_text(manifest.t0_wall_s),
            asked=_asked(summary),
            extra=_extra(summary),
            reasons_title=REASONS,
            cards=[card_of(item, summary) for item in summary.verdicts],
            charts=_charts(summary),
            scenario=scenario_tables(summary.scenario),
            backends=[view_of(item, summary) for item in summary.verdicts],
            findings=grouped(summary.findings, manifest.workload.loop),
            tails=tail_tables(summary),
            explained=_explained(summary),
            fits=fit_lines(summary.fits),
            shared_gpus=[shared_gpu_line(gpu) for gpu in summary.shared_gpus],
            method=method_lines(summary),
            fingerprint=clean(manifest.fingerprint),
            environment=clean(manifest.environment),
            thin_note=THIN_NOTE,
        )
    )
    return page.strip() + "\n"


def page_environment() -> Environment:
    """What renders our pages: everything is escaped but our own Markup."""
    return Environment(
        loader=FunctionLoader(template_text),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


#: a table, lines above it, a note below, and why its answers are what they are
_Extra = tuple[TableView, tuple[str, ...], str, tuple[Reasons, ...]]


def _extra(summary: RunSummary) -> list[_Extra]:
    """What a search, a soak and a matrix show first."""
    found: list[_Extra] = []
    if summary.found:
        view = _text_view("Knee search", SEARCH_HEADS, search_rows(summary))
        found.append((view, search_lines(summary), SEARCH_METHOD, search_reasons(summary)))
    if summary.soak is not None:
        view = _text_view("Soak", SOAK_HEADS, soak_rows(summary.soak))
        lines = tuple(soak_line(soak) for soak in summary.soak.backends)
        found.append((view, lines, SOAK_METHOD, ()))
    if is_matrix(summary):
        table = matrix_table(summary)
        found.append((_text_view("Matrix", MATRIX_HEADS, table.rows), (), table.note, ()))
    return found


def _text_view(
    title: str, heads: Sequence[tuple[str, str]], rows: Sequence[tuple[str, ...]]
) -> TableView:
    return TableView(title, tuple((head, unit, "") for head, unit in heads), tuple(rows))


def _shown(value: object) -> object:
    """What the template is given, without control characters where it is text of others."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value)
    return value


def template_text(name: str) -> str:
    """One of our templates or style sheets."""
    return (files("harness.report") / "templates" / name).read_text(encoding="utf-8")


def _charts(summary: RunSummary) -> list[tuple[str, str, list[tuple[Drawing, Markup]]]]:
    """Title, CSS class and drawings of each group of figures."""
    if len(summary.verdicts) > _MOST_CURVES:
        # colours and markers would repeat; the matrix' table says it all
        return []
    against = AXES[summary.manifest.workload.loop]
    groups = (
        ("Step by step", "speed", waterfall_figures(summary.scenario.waterfalls)),
        (f"Speed against {against}", "speed", speed_figures(summary)),
        (f"Memory against {against}", "", memory_figures(summary)),
        ("One level over time", "", timeline_figures(summary)),
    )
    return [(title, kind, [(d, _svg(d)) for d in drawings]) for title, kind, drawings in groups]


def _svg(drawing: Drawing) -> Markup:
    """matplotlib escapes the text that it draws, so its SVG is safe as it is."""
    return Markup(drawing.svg)  # noqa: S704


def _asked(summary: RunSummary) -> str:
    work = summary.manifest.workload
    text = f"{lengths_text(work)}, {_levels(work)}"
    slo = slo_text(summary.manifest.slo)
    return f"{text}, SLO {slo}" if slo else text


def _levels(work: Workload) -> str:
    levels = ", ".join(level_text(level) for level in work.levels)
    if work.search is not None:
        levels = f"chosen up to {levels}"
    if work.open_loop is None:
        return f"levels {levels}"
    if work.open_loop.trace is not None:
        return f"(medians of {work.open_loop.trace.name}), {levels} requests/s on average"
    ramp = work.open_loop.ramp
    return f"{levels} requests/s" if ramp is None else f"{ramp.start_rps:g} to {levels} requests/s"


def _explained(summary: RunSummary) -> list[tuple[str, list[tuple[TableView, tuple[str, ...]]]]]:
    """Per backend: the tables that explain its memory, each with its notes."""
    found = []
    for info in summary.manifest.backends:
        tables = explained_tables(summary, info.name)
        views = [
            (
                TableView("Memory explained", tuple((head, "", "") for head in t.heads), t.rows),
                t.notes,
            )
            for t in tables
        ]
        if views:
            found.append((info.name, views))
    return found
