"""A comparison of two runs in a terminal and as Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare.types import Comparison
from harness.errors import printable
from harness.report.compare_rows import (
    HEADS,
    Group,
    groups,
    head_lines,
    method_lines,
    mismatch_lines,
    unmatched_lines,
)
from harness.report.escaping import escaped
from harness.report.markdown import named_rows

_STYLES = {"better": "green", "worse": "bold red", "no verdict": "yellow"}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print it; names and facts of servers are never taken for markup."""
    console.print(Text(f"A: {printable(comparison.name_a)}"))
    console.print(Text(f"B: {printable(comparison.name_b)}"))
    for line in head_lines(comparison):
        console.print(Text(printable(line), style="bold"))
    for line in (*mismatch_lines(comparison), *unmatched_lines(comparison)):
        console.print(Text(printable(line), style="yellow"))
    for group in groups(comparison):
        console.print()
        console.print(Text(printable(group.title), style="bold"))
        console.print(_table(group))
        for note in group.notes:
            console.print(Text(printable(note), style="dim"))
    console.print()
    for line in method_lines():
        console.print(Text(line, style="dim"))


def _table(group: Group) -> Table:
    table = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="dim"
    )
    for place, head in enumerate(HEADS):
        table.add_column(head, justify="left" if place in (1, 6) else "right", no_wrap=True)
    for row in group.rows:
        *cells, outcome = (Text(printable(text)) for text in row)
        outcome.stylize(_STYLES.get(outcome.plain.rstrip(" !"), ""))
        table.add_row(*cells, outcome)
    return table


def markdown_comparison(comparison: Comparison) -> str:
    """The whole comparison as Markdown, ending in a newline."""
    parts = [
        f"# kvknee: {escaped(comparison.name_b)} against {escaped(comparison.name_a)}",
        f"A is {escaped(comparison.name_a)}, B is {escaped(comparison.name_b)}.",
        "\n".join(f"- **{escaped(line)}**" for line in head_lines(comparison)),
        "\n".join(
            f"- {escaped(line)}"
            for line in (*mismatch_lines(comparison), *unmatched_lines(comparison))
        ),
    ]
    for group in groups(comparison):
        parts += [
            f"## {escaped(group.title)}",
            named_rows(HEADS, group.rows),
            "\n".join(f"- {escaped(note)}" for note in group.notes),
        ]
    parts += ["## How it was compared", "\n".join(f"- {escaped(x)}" for x in method_lines())]
    return "\n\n".join(part for part in parts if part) + "\n"
