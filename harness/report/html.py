"""``report.html``: one self-contained page; it works offline and on a phone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from harness.analysis.summary_types import BackendVerdict, CellFigures, RunSummary
from harness.errors import printable
from harness.report.asked import lengths_text
from harness.report.curve_lines import NAMES, RULES, curve_evidence, curve_where, sure_text
from harness.report.curves import curves
from harness.report.drawing import Drawing
from harness.report.figures import speed_figures
from harness.report.finding_groups import grouped
from harness.report.fit_lines import fit_lines
from harness.report.forecast_lines import derivations, forecast_lines, moved
from harness.report.markdown import cells_of
from harness.report.matrix import HEADS as MATRIX_HEADS
from harness.report.matrix import is_matrix, matrix_table
from harness.report.memory_figure import memory_figures
from harness.report.method import method_lines
from harness.report.reconcile_rows import explained_tables
from harness.report.rows import (
    THIN_NOTE,
    Column,
    headline_columns,
    latency_columns,
    memory_columns,
    rate_columns,
    window_columns,
)
from harness.report.rows_open import open_columns
from harness.report.rows_sure import sure_columns
from harness.report.scenario_tables import scenario_tables
from harness.report.search_lines import SEARCH_HEADS, SEARCH_METHOD, search_lines, search_rows
from harness.report.server_rows import server_columns
from harness.report.soak import SOAK_HEADS, SOAK_METHOD, soak_line, soak_rows
from harness.report.summary_json import clean
from harness.report.tail_rows import tail_tables
from harness.report.timeline_figure import timeline_figures
from harness.report.units import THIN, level_text, utc_text, without_folder
from harness.report.waterfall_figure import waterfall_figures
from harness.report.words import (
    AXES,
    CAUSES,
    KNEE_RULES,
    KNEES,
    LEVEL_UNITS,
    knee_text,
    level_words,
    shared_gpu_line,
    slo_text,
    verdict_line,
)
from harness.workload import Workload


@dataclass(frozen=True)
class Card:
    """One backend's verdict as the page shows it first."""

    name: str
    color: str
    line: str
    big: str
    unit: str
    facts: tuple[tuple[str, str], ...]
    about: str


@dataclass(frozen=True)
class TableView:
    """A table ready to be shown: heads (title, unit, explanation) and rows of text."""

    title: str
    heads: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class BackendView:
    """One backend's section: knees with their evidence, and its tables."""

    name: str
    color: str
    headline: TableView
    details: tuple[TableView, ...]
    knees: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    prediction: tuple[str, ...]
    derivation: tuple[str, ...]
    #: what would change, from what to what, the working
    movers: tuple[tuple[str, str, str], ...]
    thin: bool


_MOST_CURVES = 8
_TABLES: tuple[tuple[str, Callable[[Sequence[CellFigures]], list[Column]]], ...] = (
    ("Open loop", open_columns),
    ("Latency", latency_columns),
    ("Rates", rate_columns),
    ("Memory", memory_columns),
    ("TTFT here and at the server", server_columns),
    ("What was measured of each level", window_columns),
)


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
            cards=[_card(item, summary) for item in summary.verdicts],
            charts=_charts(summary),
            scenario=scenario_tables(summary.scenario),
            backends=[_view(item, summary) for item in summary.verdicts],
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


def _extra(summary: RunSummary) -> list[tuple[TableView, tuple[str, ...], str]]:
    """What a search, a soak and a matrix show first: a table, lines above it, a note below."""
    found: list[tuple[TableView, tuple[str, ...], str]] = []
    if summary.found:
        view = _text_view("Knee search", SEARCH_HEADS, search_rows(summary))
        found.append((view, search_lines(summary), SEARCH_METHOD))
    if summary.soak is not None:
        view = _text_view("Soak", SOAK_HEADS, soak_rows(summary.soak))
        lines = tuple(soak_line(soak) for soak in summary.soak.backends)
        found.append((view, lines, SOAK_METHOD))
    if is_matrix(summary):
        table = matrix_table(summary)
        found.append((_text_view("Matrix", MATRIX_HEADS, table.rows), (), table.note))
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


def _color(verdict: BackendVerdict, summary: RunSummary) -> str:
    """The CSS variable with which this backend's curves are drawn."""
    for index, line in enumerate(curves(summary)):
        if line.verdict is verdict:
            names = [info.name for info in summary.manifest.backends]
            several = len(summary.verdicts) > len({v.backend.name for v in summary.verdicts})
            return f"s{(index if several else names.index(verdict.backend.name)) % 8}"
    return "s0"


def _card(verdict: BackendVerdict, summary: RunSummary) -> Card:
    knee, info = verdict.capacity, verdict.backend
    big = level_text(knee.last_good) if knee.last_good is not None else "?"
    if knee.status == "below_first":
        big = f"< {level_text(knee.first_bad or 0)}"
    facts: list[tuple[str, str]] = []
    if knee.cause is not None and knee.first_bad is not None:
        facts.append(("stopped by", CAUSES[knee.cause]))
    if verdict.predicted is not None:
        mark = {True: ", confirmed", False: ", not confirmed", None: ""}[verdict.prediction_holds]
        facts.append(("predicted", f"{verdict.predicted.requests}{mark}"))
    if verdict.latency.status in ("bracketed", "not_reached"):
        facts.append(("SLO met up to", level_words(verdict.latency.last_good, verdict.loop)))
    engine = f"{info.kind} {info.engine_version}" if info.engine_version else info.kind
    about = [without_folder(info.model), info.mode, engine, info.dtype]
    return Card(
        name=info.name,
        color=_color(verdict, summary),
        line=verdict_line(verdict, summary.manifest.slo).partition(": ")[2],
        big=big,
        unit=f"{LEVEL_UNITS[verdict.loop]} held at "
        f"{verdict.prompt_tokens}+{verdict.output_tokens} tokens",
        facts=tuple(facts),
        about=", ".join(part for part in about if part),
    )


def _view(verdict: BackendVerdict, summary: RunSummary) -> BackendView:
    cells = cells_of(summary, verdict)
    made = [(title, make(cells)) for title, make in _TABLES]
    made.append(("How sure each level is", sure_columns(cells, verdict.slo_share)))
    details = tuple(_table(title, columns, cells) for title, columns in made if columns)
    headline = _table("Levels", headline_columns(cells), cells)
    knees, confidence = [verdict.memory, verdict.latency, verdict.throughput], verdict.confidence
    if (verdict.capacity.first_bad, verdict.capacity.status) != (
        verdict.memory.first_bad,
        verdict.memory.status,
    ):
        knees.insert(0, verdict.capacity)
    return BackendView(
        name=f"{verdict.backend.name} {verdict.variant}".strip(),
        color=_color(verdict, summary),
        headline=headline,
        details=details,
        knees=(
            *(
                (
                    KNEES[k.kind],
                    knee_text(k, verdict.loop),
                    KNEE_RULES[k.kind],
                    (*k.evidence, *(sure_text(b) for b in confidence.brackets if b.knee == k.kind)),
                )
                for k in knees
            ),
            *(
                (NAMES[c.kind], curve_where(c), RULES[c.kind], curve_evidence(c))
                for c in confidence.curves
            ),
        ),
        prediction=tuple(forecast_lines(verdict)),
        derivation=derivations(verdict),
        movers=tuple((each.change, moved(each), each.working) for each in verdict.movers),
        thin=any(
            THIN in text for view in (headline, *details) for row in view.rows for text in row
        ),
    )


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


def _table(title: str, columns: Sequence[Column], cells: Sequence[CellFigures]) -> TableView:
    return TableView(
        title=title,
        heads=tuple((column.title, column.unit, column.help) for column in columns),
        rows=tuple(tuple(column.text(cell) for column in columns) for cell in cells),
    )
