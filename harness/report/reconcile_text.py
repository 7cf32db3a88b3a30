"""Memory explained and fitted laws for a terminal, and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis.fit_types import Fit
from harness.analysis.reconcile_types import Reconciled, Unreconciled
from harness.errors import printable
from harness.report.fit_lines import fit_lines
from harness.report.reconcile_rows import MAX_COLUMNS, UNEXPLAINED, Explained, latest, tables_of

_STAGE_ROW, _STEP_ROW = "= ", "+ "
#: of the terminal, in characters
_LABEL_WIDTH, _LEVEL_WIDTH = 31, 20


def print_explained(found: Sequence[Reconciled | Unreconciled], console: Console) -> None:
    """One table per backend and some levels, its notes below."""
    for backend in dict.fromkeys(item.cell.backend for item in found):
        own = [item for item in found if item.cell.backend == backend]
        console.print()
        name = f"{printable(backend)} ({printable(own[0].cell.mode)})"
        console.print(Text(f"{name}: memory explained", style="bold"))
        for table in tables_of(own, _columns(console.width)):
            if table.rows:
                console.print(_table(table))
            for note in table.notes:
                console.print(Text(printable(note), style="dim"))


def print_briefly(
    found: Sequence[Reconciled | Unreconciled], fits: Sequence[Fit], console: Console
) -> None:
    """Each backend at its last explained level side by side, and the laws that were fitted."""
    last = latest(found)
    if not last:
        return
    console.print()
    console.print(Text("Memory explained, at the last level of each", style="bold"))
    for table in tables_of(last, _columns(console.width)):
        console.print(_table(table))
        for note in table.notes:
            console.print(Text(printable(note), style="dim"))
    print_fits([fit for fit in fits if fit.absent is None], console)
    console.print(Text("kvknee reconcile RUN_DIR explains every level.", style="dim"))


def print_fits(fits: Sequence[Fit], console: Console) -> None:
    """The laws, one line each."""
    if not fits:
        return
    console.print()
    console.print(Text("Fitted laws", style="bold"))
    for line in fit_lines(fits):
        console.print(Text(f"  {printable(line)}"))


def _columns(width: int) -> int:
    """Levels that fit beside the labels."""
    return max(1, min(MAX_COLUMNS, (width - _LABEL_WIDTH) // _LEVEL_WIDTH))


def _table(explained: Explained) -> Table:
    table = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="dim"
    )
    first, *heads = explained.heads
    table.add_column(Text(first), no_wrap=True)
    for head in heads:
        # each part on a line of its own, so that columns stay narrow
        what, _, level = head.partition(" at ")
        lines = "\n".join([*what.split(), f"at {level}"])
        table.add_column(Text(lines), justify="right")
    for row in explained.rows:
        table.add_row(*(Text(text, style=_style(row[0])) for text in row))
    return table


def _style(label: str) -> str:
    if label.startswith(_STAGE_ROW):
        return "bold"
    if label == f"{_STEP_ROW}{UNEXPLAINED}":
        return "yellow"
    return ""
