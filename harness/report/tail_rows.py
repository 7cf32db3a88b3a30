"""Why this p99: the tails as tables and as one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.tail_types import TailCause, TailOf, TailRow
from harness.kv.units import counted
from harness.report.rows import level_name
from harness.report.scenario_tables import TextTable
from harness.report.units import THIN, duration_text, level_text, ms_text

CAUSES: dict[TailCause, str] = {
    "client": "client",
    "long_prompt": "long prompt",
    "preemption": "preemption",
    "memory": "KV memory",
    "queue": "queue",
    "prefill": "another's prefill",
    "not_explained": "not explained",
}
_Tails = Sequence[tuple[CellFigures, TailOf]]
#: Rows of one level and figure in a report; summary.json has more.
MOST_ROWS = 3
_HEADS = (
    ("level", "", ""),
    ("figure", "", ""),
    ("p50", "ms", "of the counted successes"),
    ("p99", "ms", "of the counted successes"),
    ("beyond", "requests", "whose figure is larger than p99"),
    ("causes", "", "of the worst of them, 200 at most"),
)
_ROW_HEADS = (
    ("level", "", ""),
    ("figure", "", ""),
    ("value", "ms", ""),
    ("user", "", "as the record has it"),
    ("sent", "s", "from the level's start"),
    ("cause", "", ""),
    ("evidence", "", ""),
)


def tail_tables(summary: RunSummary) -> list[tuple[str, TextTable, TextTable]]:
    """Per backend: its name, one row per level and figure, and the worst requests."""
    found = []
    for info in summary.manifest.backends:
        cells = [cell for cell in summary.cells_of(info.name) if cell.tail is not None]
        tails = [(c, tail) for c in cells if c.tail for tail in c.tail.figures if tail.beyond]
        if tails:
            found.append((info.name, _totals(tails), _worst(tails)))
    return found


def _totals(tails: _Tails) -> TextTable:
    named = _names(tails)
    rows = tuple(
        (
            named(cell),
            tail.figure,
            ms_text(tail.p50_s),
            ms_text(tail.p99_s, thin=tail.thin),
            f"{tail.beyond:,}",
            _causes(tail),
        )
        for cell, tail in tails
    )
    capped = any(tail.explained < tail.beyond for _, tail in tails)
    note = ("Of more than 200 requests beyond p99 the 200 worst are explained.",)
    return TextTable("Requests beyond p99", _HEADS, rows, note if capped else ())


def _worst(tails: _Tails) -> TextTable:
    named = _names(tails)
    rows = tuple((named(cell), *_row(row)) for cell, tail in tails for row in tail.rows[:MOST_ROWS])
    left = sum(tail.beyond for _, tail in tails) - len(rows)
    note = f"The {MOST_ROWS} worst of each level and figure are shown, {left:,} are not."
    return TextTable("The worst of them", _ROW_HEADS, rows, (note,) if left else ())


def _row(row: TailRow) -> tuple[str, ...]:
    return (
        row.figure,
        ms_text(row.value_s),
        str(row.user),
        f"{row.after_s:.2f}",
        CAUSES[row.cause],
        row.evidence,
    )


def _names(tails: _Tails) -> Callable[[CellFigures], str]:
    """How a cell is called: by its level, and what else tells cells of a backend apart."""
    keys = [cell.cell for cell, _ in tails]
    if len({(key.prompt_tokens, key.output_tokens, key.variant) for key in keys}) < 2:
        return level_name

    def name(cell: CellFigures) -> str:
        key = cell.cell
        lengths = f"{key.prompt_tokens}+{key.output_tokens}"
        return f"{level_name(cell)} at {lengths} {key.variant}".rstrip()

    return name


def _causes(tail: TailOf) -> str:
    """``12 queue, 3 preemption``."""
    return ", ".join(f"{n:,} {CAUSES[cause]}" for cause, n in tail.causes)


def brief_tails(cells: Sequence[CellFigures]) -> list[str]:
    """For a terminal: the tails of a backend's highest level with any, one line each."""
    for cell in reversed(cells):
        tails = [t for t in (cell.tail.figures if cell.tail else ()) if t.beyond]
        if tails:
            return [_brief(cell, tail) for tail in tails]
    return []


def _brief(cell: CellFigures, tail: TailOf) -> str:
    p99 = duration_text(tail.p99_s) + (THIN if tail.thin else "")
    return (
        f"Why p99 of {tail.figure} at {level_text(cell.cell.level)} is {p99}: of "
        f"{counted(tail.beyond, 'request')} beyond it: {_causes(tail)}."
    )
