"""The summary in a terminal: verdicts first, then one row per level and backend."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.errors import printable
from harness.report.finding_groups import grouped
from harness.report.markdown import cells_of
from harness.report.reconcile_text import print_briefly
from harness.report.rows import THIN_NOTE, Column, headline_columns
from harness.report.rows_open import open_columns
from harness.report.units import THIN, without_folder
from harness.report.words import prediction_text, verdict_line

_STYLES = {"note": "cyan", "warning": "yellow", "invalid": "bold red"}
_LIMITED = {"KV memory": "red", "max_num_seqs": "red", "not judged": "yellow"}


def print_summary(summary: RunSummary, console: Console) -> None:
    """Print verdicts, tables and findings; text of servers is never taken for markup."""
    console.print()
    for verdict in summary.verdicts:
        console.print(_headline(verdict_line(verdict, summary.manifest.slo)))
    if not summary.verdicts:
        console.print(Text("No level was measured."))
    thin = False
    for verdict in summary.verdicts:
        cells = cells_of(summary, verdict)
        console.print()
        info = verdict.backend
        about = f"{without_folder(info.model)}, {info.mode}"
        title = f"{printable(info.name)}  {printable(about)}"
        console.print(Text(title, style="bold"))
        for columns in (headline_columns(cells), open_columns(cells)):
            if columns:
                console.print(_table(columns, cells))
                thin |= any(THIN in column.text(c) for column in columns for c in cells)
        if prediction_text(verdict):
            console.print(Text(prediction_text(verdict), style="dim"))
    if thin:
        console.print(Text(THIN_NOTE, style="dim"))
    print_briefly(summary.reconciled, summary.fits, console)
    console.print()
    console.print(_findings(summary))


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
