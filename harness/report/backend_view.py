"""One backend as the page shows it: its card, its knees and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.verdict_types import BackendVerdict
from harness.report.curve_lines import NAMES, RULES, curve_evidence, curve_where, sure_text
from harness.report.curves import curves
from harness.report.forecast_lines import derivations, forecast_lines, moved
from harness.report.markdown import cells_of
from harness.report.rows import (
    Column,
    headline_columns,
    latency_columns,
    memory_columns,
    rate_columns,
    window_columns,
)
from harness.report.rows_open import open_columns
from harness.report.rows_sure import sure_columns
from harness.report.server_rows import server_columns
from harness.report.units import THIN, level_text, without_folder
from harness.report.words import (
    CAUSES,
    KNEES,
    LEVEL_UNITS,
    by_search,
    interval_words,
    knee_evidence,
    knee_rule,
    knee_text,
    level_words,
    verdict_line,
)


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


_TABLES: tuple[tuple[str, Callable[[Sequence[CellFigures]], list[Column]]], ...] = (
    ("Open loop", open_columns),
    ("Latency", latency_columns),
    ("Rates", rate_columns),
    ("Memory", memory_columns),
    ("TTFT here and at the server", server_columns),
    ("What was measured of each level", window_columns),
)


def color_of(verdict: BackendVerdict, summary: RunSummary) -> str:
    """The CSS variable with which this backend's curves are drawn."""
    for index, line in enumerate(curves(summary)):
        if line.verdict is verdict:
            names = [info.name for info in summary.manifest.backends]
            several = len(summary.verdicts) > len({v.backend.name for v in summary.verdicts})
            return f"s{(index if several else names.index(verdict.backend.name)) % 8}"
    return "s0"


def card_of(verdict: BackendVerdict, summary: RunSummary) -> Card:
    """What the page shows of a backend first."""
    knee, info = verdict.capacity, verdict.backend
    big = level_text(knee.last_good) if knee.last_good is not None else "?"
    if knee.status == "below_first":
        big = f"< {level_text(knee.first_bad or 0)}"
    facts: list[tuple[str, str]] = []
    if knee.cause is not None and knee.first_bad is not None:
        facts.append(("stopped by", CAUSES[knee.cause]))
    if knee.searched is not None:
        sure = filter(None, (interval_words(knee), by_search(knee)))
        facts.append(("how sure", " ".join(sure)))
    if verdict.predicted is not None:
        mark = {True: ", confirmed", False: ", not confirmed", None: ""}[verdict.prediction_holds]
        facts.append(("predicted", f"{verdict.predicted.requests}{mark}"))
    if verdict.latency.status in ("bracketed", "not_reached"):
        facts.append(("SLO met up to", level_words(verdict.latency.last_good, verdict.loop)))
    engine = f"{info.kind} {info.engine_version}" if info.engine_version else info.kind
    about = [without_folder(info.model), info.mode, engine, info.dtype]
    return Card(
        name=info.name,
        color=color_of(verdict, summary),
        line=verdict_line(verdict, summary.manifest.slo).partition(": ")[2],
        big=big,
        unit=f"{LEVEL_UNITS[verdict.loop]} held at "
        f"{verdict.prompt_tokens}+{verdict.output_tokens} tokens",
        facts=tuple(facts),
        about=", ".join(part for part in about if part),
    )


def view_of(verdict: BackendVerdict, summary: RunSummary) -> BackendView:
    """A backend's section."""
    cells = cells_of(summary, verdict)
    made = [(title, make(cells)) for title, make in _TABLES]
    made.append(("How sure each level is", sure_columns(cells, verdict.slo_share)))
    details = tuple(_table(title, columns, cells) for title, columns in made if columns)
    headline = _table("Levels", headline_columns(cells), cells)
    knees, confidence = [verdict.memory, verdict.latency, verdict.throughput], verdict.confidence
    capacity, memory = verdict.capacity, verdict.memory
    if (capacity.first_bad, capacity.status, capacity.cause) != (
        memory.first_bad,
        memory.status,
        memory.cause,
    ):
        knees.insert(0, capacity)
    return BackendView(
        name=f"{verdict.backend.name} {verdict.variant}".strip(),
        color=color_of(verdict, summary),
        headline=headline,
        details=details,
        knees=(
            *(
                (
                    KNEES[k.kind],
                    knee_text(k, verdict.loop),
                    knee_rule(k),
                    (
                        *knee_evidence(k),
                        *(sure_text(b) for b in confidence.brackets if b.knee == k.kind),
                    ),
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


def _table(title: str, columns: Sequence[Column], cells: Sequence[CellFigures]) -> TableView:
    return TableView(
        title=title,
        heads=tuple((column.title, column.unit, column.help) for column in columns),
        rows=tuple(tuple(column.text(cell) for column in columns) for cell in cells),
    )
