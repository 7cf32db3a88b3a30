"""A night in a terminal: the verdict first, then what it rests on; 80 columns are enough."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.errors import printable
from harness.nightly.night_types import Judged, Night
from harness.nightly.outputs.headline import headline
from harness.nightly.outputs.sections import (
    about_line,
    event_lines,
    gated,
    method_lines,
    moved,
    notes,
    reasons,
    rest_text,
    row,
    sight_note,
    sight_rows,
)
from harness.nightly.outputs.words import moved_text

_WORD_STYLES = {"OK": "bold green", "NO VERDICT": "bold yellow"}
_STYLES = {"regressed": "bold red", "improved": "green", "ok": ""}
#: a row has two lines, and so has the head
_HEADS = (
    *("cell\nfigure", "tonight\n", "baseline\n(nights)", "change\n95 % interval"),
    *("called\nfrom", "verdict\n"),
)


def show(night: Night, console: Console) -> None:
    """Print a night; text of servers is never taken for markup."""
    said = headline(night)
    style = _WORD_STYLES.get(said.word, "bold red")
    console.print(Text.assemble((said.word, style), ": ", printable(said.text)))
    for line in notes(night):
        console.print(Text(f"  {printable(line)}"))
    console.print(Text(printable(about_line(night)), style="dim"))
    _show_gated(night, console)
    _show_list("Moved, not gated", [moved_line(item) for item in moved(night)], console)
    rest = rest_text(night)
    if rest:
        console.print()
        console.print(Text(printable(rest)))
    _show_list("Events", event_lines(night), console)
    _show_sight(night, console)
    console.print()
    for line in method_lines(night):
        console.print(Text(line, style="dim"))


def moved_line(item: Judged) -> str:
    """``regressed  paged 512+64 c16: TTFT p95 +12.3 % (...)``."""
    return f"{item.verdict.name}  {moved_text(item)}"


def _show_gated(night: Night, console: Console) -> None:
    items = gated(night)
    if not items:
        return
    console.print()
    console.print(Text("Gated", style="bold"))
    table = _table(_HEADS, wide=(0, 5))
    for item in items:
        cell, figure, verdict, tonight, baseline, change, interval, called, nights = row(item)
        name = Text(printable(verdict), style=_STYLES.get(item.verdict.name, "yellow"))
        table.add_row(
            *(
                Text("\n".join(map(printable, lines)))
                for lines in (
                    (cell, figure),
                    (tonight,),
                    (baseline, f"({nights})"),
                    (change, interval),
                    (called,),
                )
            ),
            name,
        )
    console.print(table)
    for line in reasons(items):
        console.print(Text(f"  {printable(line)}", style="dim"))


def _show_sight(night: Night, console: Console) -> None:
    rows = sight_rows(night)
    if not rows:
        return
    console.print()
    console.print(Text("Smallest regression that this history can see", style="bold"))
    table = _table(("cell", "figure", "smallest", "night to\nnight", "nights"), wide=(0,))
    for texts in rows:
        table.add_row(*(Text(printable(text)) for text in texts))
    console.print(table)
    console.print(Text(sight_note(night), style="dim"))


def _show_list(title: str, lines: Sequence[str], console: Console) -> None:
    if not lines:
        return
    console.print()
    console.print(Text(f"{title} ({len(lines)})", style="bold"))
    for line in lines:
        console.print(Text(f"  {printable(line)}"))


def _table(heads: Sequence[str], wide: Sequence[int]) -> Table:
    """Columns of figures to the right; those of ``wide`` hold words and may break."""
    table = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="dim"
    )
    for place, head in enumerate(heads):
        words = place in wide
        table.add_column(
            Text(head),
            justify="left" if words or head == "figure" else "right",
            no_wrap=not words,
            overflow="fold",
            # room for the names of cells
            max_width=14 if head.startswith("verdict") else None,
        )
    return table
