"""The summary in a terminal: verdicts first, then one row per level and backend."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.verdict_types import BackendVerdict
from harness.errors import printable
from harness.report.curve_lines import brief_curves
from harness.report.finding_groups import grouped
from harness.report.forecast_lines import MOVERS, brief_lines, mover_lines
from harness.report.markdown import cells_of
from harness.report.matrix import COMPACT, is_matrix, matrix_table
from harness.report.matrix import HEADS as MATRIX_HEADS
from harness.report.reconcile_text import print_briefly
from harness.report.rows import THIN_NOTE, Column, headline_columns
from harness.report.rows_open import open_columns
from harness.report.scenario_tables import TextTable, scenario_tables
from harness.report.search_lines import SearchAnswer, search_answers
from harness.report.soak import SOAK_HEADS, soak_line, soak_rows
from harness.report.tail_rows import brief_tails
from harness.report.units import THIN, without_folder
from harness.report.words import verdict_line

_STYLES = {"note": "cyan", "warning": "yellow", "invalid": "bold red"}
#: units as a terminal has room for them
_SHORT = {"simulated": "simul.", "measured": "found", "against above": "x above"}
_LIMITED = {"KV memory": "red", "max_num_seqs": "red", "not judged": "yellow"}


def print_summary(summary: RunSummary, console: Console) -> None:
    """Print verdicts, tables and findings; text of servers is never taken for markup."""
    console.print()
    _print_headlines(summary, console)
    thin = False
    _print_extra(summary, console)
    # a matrix has its own table; one more per length would bury it
    for verdict in () if is_matrix(summary) else summary.verdicts:
        cells = cells_of(summary, verdict)
        console.print()
        info = verdict.backend
        about = f"{without_folder(info.model)}, {info.mode}"
        if verdict.variant:
            about += f", {verdict.variant}"
        title = f"{printable(info.name)}  {printable(about)}"
        console.print(Text(title, style="bold"))
        for columns in (headline_columns(cells), open_columns(cells)):
            if columns:
                console.print(_table(columns, cells))
                thin |= any(THIN in column.text(c) for column in columns for c in cells)
        lines = (*brief_lines(verdict), brief_curves(verdict), *brief_tails(cells))
        for line in filter(None, lines):
            console.print(Text(printable(line), style="dim"))
            thin |= THIN in line
        _print_movers(verdict, console)
    for view in scenario_tables(summary.scenario):
        _print_scenario(view, console)
        thin |= any(text.endswith(THIN) for row in view.rows for text in row)
    if thin:
        console.print(Text(THIN_NOTE, style="dim"))
    print_briefly(summary.reconciled, summary.fits, console)
    console.print()
    console.print(_findings(summary))


def _print_movers(verdict: BackendVerdict, console: Console) -> None:
    if verdict.movers:
        console.print(Text(f"{MOVERS}:"))
    for line in mover_lines(verdict):
        console.print(Text(f"  {printable(line)}"))


def _print_headlines(summary: RunSummary, console: Console) -> None:
    for verdict in summary.verdicts:
        # of a matrix' many lengths those that tell something
        if not is_matrix(summary) or verdict.capacity.status != "no_verdict":
            console.print(_headline(verdict_line(verdict, summary.manifest.slo)))
    if not summary.verdicts:
        console.print(Text("No level was measured."))


def _print_extra(summary: RunSummary, console: Console) -> None:
    """What a matrix, a search and a soak show beside the levels."""
    if is_matrix(summary):
        table = matrix_table(summary)
        console.print()
        heads = [MATRIX_HEADS[place] for place in COMPACT]
        rows = [[row[place] for place in COMPACT] for row in table.rows]
        console.print(text_table(heads, rows))
        for remark in table.remarks:
            console.print(Text(printable(remark)))
        if table.note:
            console.print(Text(table.note, style="dim"))
    if summary.found:
        console.print()
        for answer in search_answers(summary):
            _print_answer(answer, console)
    if summary.soak is not None:
        console.print()
        for soak in summary.soak.backends:
            console.print(_headline(soak_line(soak)))
        console.print(text_table(SOAK_HEADS, soak_rows(summary.soak)))


def _print_answer(answer: SearchAnswer, console: Console) -> None:
    console.print(Text(printable(answer.line), style="bold"), soft_wrap=True)
    for line in answer.reasons.lines if answer.reasons is not None else ():
        console.print(Text(f"  {printable(line)}"))
    if answer.advice:
        # it may be pasted: no line break that is not in it
        console.print(Text(printable(answer.advice), style="bold"), soft_wrap=True)


def text_table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose rows are text already; the last column may break."""
    table = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="dim"
    )
    for place, (title, unit) in enumerate(heads):
        last = place + 1 == len(heads)
        table.add_column(Text(f"{title}\n{unit}"), justify="right", no_wrap=not last)
    for row in rows:
        # a row may have a second line, and no other character that steers a terminal
        table.add_row(*(Text("\n".join(map(printable, text.split("\n")))) for text in row))
    return table


def _headline(line: str) -> Text:
    name, _, rest = printable(line).partition(": ")
    return Text.assemble((name, "bold"), ": ", rest)


def _table(columns: Sequence[Column], cells: Sequence[CellFigures]) -> Table:
    table = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="dim"
    )
    for column in columns:
        first, _, second = column.title.partition(" ")
        head = "\n".join([first, f"{second} {column.unit}".strip()])
        table.add_column(Text(head), justify="right", no_wrap=True)
    for cell in cells:
        texts = [column.text(cell) for column in columns]
        table.add_row(*(Text(text, style=_LIMITED.get(text, "")) for text in texts))
    return table


def _print_scenario(view: TextTable, console: Console) -> None:
    """A table of the run's own scenario, and its notes."""
    console.print()
    console.print(Text(view.title, style="bold"))
    table = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="dim"
    )
    for place in view.narrow:
        title, unit, _ = view.heads[place]
        head = "\n".join([*title.split(" "), _SHORT.get(unit, unit)]).strip()
        table.add_column(Text(head), justify="left" if place < 2 else "right", no_wrap=True)
    for row in view.rows:
        table.add_row(*(Text(printable(row[place])) for place in view.narrow))
    console.print(table)
    for note in view.notes:
        console.print(Text(printable(note), style="dim"))


def _findings(summary: RunSummary) -> Text:
    findings = summary.findings
    if not findings:
        return Text("No findings.")
    lines = Text(f"{len(findings)} finding{'s' if len(findings) > 1 else ''}:")
    for group in grouped(findings, summary.manifest.workload.loop):
        lines.append("\n  ")
        lines.append(group.severity, style=_STYLES[group.severity])
        lines.append(f"  {group.code}: {group.remedy}")
        for where, text in group.items:
            lines.append(f"\n    {printable(where)}: " if where else "\n    ")
            lines.append(printable(text))
    return lines
