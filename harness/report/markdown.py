"""``report.md``: the verdicts, the tables and the findings as plain Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.verdict_types import BackendVerdict
from harness.report.curve_lines import confidence_lines
from harness.report.escaping import escaped as _escaped
from harness.report.finding_groups import FindingGroup, grouped
from harness.report.fit_lines import fit_lines
from harness.report.forecast_lines import MOVERS, forecast_lines, mover_lines
from harness.report.matrix import HEADS as MATRIX_HEADS
from harness.report.matrix import is_matrix, matrix_table
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
from harness.report.scenario_tables import TextTable, scenario_tables
from harness.report.search_lines import (
    REASONS,
    SEARCH_HEADS,
    SEARCH_METHOD,
    search_lines,
    search_reasons,
    search_rows,
)
from harness.report.server_rows import server_columns
from harness.report.soak import SOAK_HEADS, SOAK_METHOD, soak_line, soak_rows
from harness.report.summary_json import clean
from harness.report.tail_rows import tail_tables
from harness.report.units import THIN, utc_text, without_folder
from harness.report.words import (
    KNEES,
    knee_text,
    shared_gpu_line,
    verdict_line,
)


def markdown_report(summary: RunSummary) -> str:
    """The whole report as Markdown, ending in a newline."""
    manifest = summary.manifest
    parts = [
        f"# kvknee: {_escaped(manifest.run_id)}",
        f"{utc_text(manifest.t0_wall_s)}, {manifest.status}, "
        f"kvknee {_escaped(manifest.kvknee_version)}",
        "\n".join(f"- **{_escaped(verdict_line(v, manifest.slo))}**" for v in summary.verdicts)
        or "No level was measured.",
        *_search(summary),
        *_soak(summary),
        *_matrix(summary),
    ]
    for verdict in summary.verdicts:
        parts += _backend(verdict, cells_of(summary, verdict))
    for view in scenario_tables(summary.scenario):
        parts += _scenario(view)
    parts += _tails(summary)
    parts += _explained(summary)
    if summary.shared_gpus:
        shared = "\n".join(f"- {_escaped(shared_gpu_line(gpu))}" for gpu in summary.shared_gpus)
        parts += ["## Memory of shared GPUs", shared]
    parts += [
        "## Findings",
        "\n".join(_finding(group) for group in grouped(summary.findings, manifest.workload.loop))
        or "None.",
        "## How it was measured",
        "\n".join(f"- {_escaped(line)}" for line in method_lines(summary)),
        "## Fingerprint",
        "\n".join(
            f"- {_escaped(key)}: {_escaped(str(value))}"
            for key, value in clean(manifest.fingerprint).items()
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _matrix(summary: RunSummary) -> list[str]:
    if not is_matrix(summary):
        return []
    table = matrix_table(summary)
    return ["## Matrix", text_table(MATRIX_HEADS, table.rows), _escaped(table.note)]


def _search(summary: RunSummary) -> list[str]:
    if not summary.found:
        return []
    lines = [f"- {_escaped(line)}" for line in search_lines(summary)]
    table = text_table(SEARCH_HEADS, search_rows(summary))
    return ["## Knee search", "\n".join(lines), table, SEARCH_METHOD, *_reasons(summary)]


def _reasons(summary: RunSummary) -> list[str]:
    """Under the search's table: both sides of each cause."""
    lines: list[str] = []
    for reasons in search_reasons(summary):
        lines.append(f"- {_escaped(reasons.head)}")
        lines += [f"  - {_escaped(line)}" for line in reasons.lines]
    return [f"{REASONS}:", "\n".join(lines)] if lines else []


def _soak(summary: RunSummary) -> list[str]:
    if summary.soak is None:
        return []
    lines = [f"- {_escaped(soak_line(soak))}" for soak in summary.soak.backends]
    table = text_table(SOAK_HEADS, soak_rows(summary.soak))
    return ["## Soak", "\n".join(lines), table, SOAK_METHOD]


def text_table(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """A table whose rows are text already; ``heads`` are (title, unit)."""
    titles = [f"{title} ({unit})" if unit else title for title, unit in heads]
    lines = [titles, ["---:"] * len(titles)]
    lines += [[_escaped(text) for text in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cells_of(summary: RunSummary, verdict: BackendVerdict) -> tuple[CellFigures, ...]:
    """The cells that a verdict speaks of."""
    return tuple(
        item
        for item in summary.cells_of(verdict.backend.name)
        if (item.cell.prompt_tokens, item.cell.output_tokens, item.cell.variant)
        == (verdict.prompt_tokens, verdict.output_tokens, verdict.variant)
    )


def _backend(verdict: BackendVerdict, cells: Sequence[CellFigures]) -> list[str]:
    info = verdict.backend
    knees = [
        f"{KNEES[knee.kind]}: {knee_text(knee, verdict.loop)}"
        for knee in (verdict.capacity, verdict.memory, verdict.latency, verdict.throughput)
    ]
    parts = [
        f"## {_escaped(info.name)}: {_escaped(without_folder(info.model))} "
        f"({_escaped(', '.join(filter(None, (info.mode, verdict.variant))))})",
        "\n".join(f"- {_escaped(line)}" for line in (*knees, *confidence_lines(verdict))),
        "\n".join(f"- {_escaped(line)}" for line in forecast_lines(verdict)),
        *_movers(verdict),
    ]
    tables = (
        *(headline_columns, open_columns, latency_columns, rate_columns, memory_columns),
        *(server_columns, window_columns),
    )
    made = [*(make(cells) for make in tables), sure_columns(cells, verdict.slo_share)]
    text = "\n\n".join(markdown_table(columns, cells) for columns in made if columns)
    return [*parts, text, THIN_NOTE.replace("*", "\\*") if THIN in text else ""]


def _movers(verdict: BackendVerdict) -> list[str]:
    if not verdict.movers:
        return []
    lines = [f"- {_escaped(line)}" for line in mover_lines(verdict)]
    return [f"{MOVERS}:", "\n".join(lines)]


def _tails(summary: RunSummary) -> list[str]:
    """Per backend: how many requests lie beyond p99 and why, and the worst of them."""
    parts = []
    for name, totals, worst in tail_tables(summary):
        parts.append(f"### {_escaped(name)}")
        parts += [part for table in (totals, worst) for part in _table_parts(table)]
    return ["## Why this p99", *parts] if parts else []


def _explained(summary: RunSummary) -> list[str]:
    """Each backend's memory from theory to the device, and the fitted laws."""
    parts: list[str] = []
    for info in summary.manifest.backends:
        tables = explained_tables(summary, info.name)
        if tables:
            parts.append(f"### {_escaped(info.name)}")
        for table in tables:
            parts += [named_rows(table.heads, table.rows)] if table.rows else []
            parts.append("\n".join(f"- {_escaped(note)}" for note in table.notes))
    if parts:
        parts.insert(0, "## Memory explained: needed, used, reserved, device")
    if summary.fits:
        lines = fit_lines(summary.fits)
        parts += ["## Fitted laws", "\n".join(f"- {_escaped(line)}" for line in lines)]
    return parts


def named_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts: the first column to the left, figures to the right."""
    lines = [[_escaped(text) for text in heads], [":---", *["---:"] * (len(heads) - 1)]]
    lines += [[_escaped(text) for text in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_table(columns: Sequence[Column], cells: Iterable[CellFigures]) -> str:
    """One table, figures right-aligned."""
    heads = [f"{c.title} ({c.unit})" if c.unit else c.title for c in columns]
    lines = [heads, ["---:"] * len(columns)]
    lines += [[_escaped(column.text(cell)) for column in columns] for cell in cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _scenario(view: TextTable) -> list[str]:
    """A table of the run's own scenario, and its notes."""
    return [f"## {_escaped(view.title)}", *_table_parts(view)]


def _table_parts(view: TextTable) -> list[str]:
    """A table that is text already, and its notes."""
    heads = [_escaped(f"{title} ({unit})" if unit else title) for title, unit, _ in view.heads]
    lines = [heads, ["---:"] * len(heads), *([_escaped(text) for text in row] for row in view.rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return [table, *(_escaped(note) for note in view.notes)]


def _finding(group: FindingGroup) -> str:
    lines = [f"- **{group.severity}** {_escaped(group.code)}: {_escaped(group.remedy)}"]
    lines += [
        f"  - {_escaped(f'{where}: {text}' if where else text)}" for where, text in group.items
    ]
    return "\n".join(lines)
