"""The table of a matrix: one row per cell, those that were left out with their reason."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.percentiles import Distribution
from harness.analysis.summary_types import CellFigures, RunSummary
from harness.records import CellKey
from harness.report.rows import THIN_NOTE
from harness.report.units import ABSENT, THIN, bytes_text, level_text, ms_text, number
from harness.report.words import ADMISSIONS

_PERCENTILES = (50, 95, 99)
#: heads: (title, unit)
HEADS: tuple[tuple[str, str], ...] = (
    ("prompt", "tokens"),
    ("output", "tokens"),
    ("level", ""),
    ("backend", ""),
    ("mode", ""),
    ("n", ""),
    *(("TTFT", f"p{p} ms") for p in _PERCENTILES),
    *(("TPOT", f"p{p} ms") for p in _PERCENTILES),
    ("output", "tok/s"),
    ("KV used", "max"),
    ("reserved", "max"),
    ("note", ""),
)
#: the columns that fit into a terminal
COMPACT = (0, 1, 2, 3, 5, 6, 7, 9, 10, 12, 13)
#: what a skipped or broken-off level's reason means
_REASONS = {
    "backend_lost": "the backend stopped answering",
    "interrupted": "the run was interrupted before it",
}


@dataclass(frozen=True)
class MatrixTable:
    """Rows of text under ``HEADS``."""

    rows: tuple[tuple[str, ...], ...]

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes of the rows for a place without room for a column, each once."""
        found: dict[str, list[str]] = {}
        for prompt, output, level, backend, *_, note in self.rows:
            if note:
                found.setdefault(note, []).append(f"{backend} {prompt}+{output} c{level}")
        return tuple(f"{', '.join(where)}: {note}" for note, where in found.items())

    @property
    def note(self) -> str:
        """What the mark of a small sample means; empty where there is none."""
        return THIN_NOTE if any(THIN in text for row in self.rows for text in row) else ""


def is_matrix(summary: RunSummary) -> bool:
    """Whether the run was a matrix."""
    return summary.manifest.workload.shapes is not None


def matrix_table(summary: RunSummary) -> MatrixTable:
    """All cells by prompt, output, level and backend."""
    order = {info.name: place for place, info in enumerate(summary.manifest.backends)}
    rows = {figures.cell: _measured(figures) for figures in summary.cells}
    rows |= {item.cell: _left_out(item.cell, item.reason) for item in summary.skipped}

    def place(cell: CellKey) -> tuple[float, ...]:
        by_load = cell.prompt_tokens, cell.output_tokens, cell.level
        return *by_load, order.get(cell.backend, len(order)), cell.repeat

    return MatrixTable(tuple(rows[cell] for cell in sorted(rows, key=place)))


def _measured(figures: CellFigures) -> tuple[str, ...]:
    memory = figures.memory
    used = memory.used_bytes.maximum if memory is not None and memory.used_bytes else None
    reserved = (
        memory.reserved_bytes.maximum if memory is not None and memory.reserved_bytes else None
    )
    return (
        *_key(figures.cell),
        f"{figures.counts.ok:,}",
        *_percentiles(figures.latency.ttft_s),
        *_percentiles(figures.latency.tpot_s),
        number(figures.throughput.output_tokens_per_s),
        bytes_text(used),
        bytes_text(reserved),
        _note(figures),
    )


def _left_out(cell: CellKey, reason: str) -> tuple[str, ...]:
    blank = [ABSENT] * (len(HEADS) - len(_key(cell)) - 1)
    return *_key(cell), *blank, f"not measured: {_REASONS.get(reason, reason)}"


def _key(cell: CellKey) -> tuple[str, ...]:
    repeat = f" #{cell.repeat + 1}" if cell.repeat else ""
    return (
        f"{cell.prompt_tokens}",
        f"{cell.output_tokens}",
        level_text(cell.level) + repeat,
        cell.backend,
        cell.mode,
    )


def _percentiles(found: Distribution) -> tuple[str, ...]:
    points = (found.at(p) for p in _PERCENTILES)
    return tuple(ms_text(point.value, thin=point.insufficient) for point in points)


def _note(figures: CellFigures) -> str:
    """Why a cell failed or gives no verdict; else what kept requests out, if anything did."""
    parts: list[str] = []
    if figures.counts.failed:
        first = next((e for e in figures.counts.errors if e.outcome != "cancelled"), None)
        said = f" ({first.text or first.outcome})" if first is not None else ""
        parts.append(f"{figures.counts.failed} failed{said}")
    if figures.unjudged is not None:
        parts.append(f"no verdict: {_broken_off(figures) or figures.unjudged}")
    elif figures.admission.state not in ("free", "unknown"):
        parts.append(f"limited by {ADMISSIONS[figures.admission.state]}")
    return "; ".join(parts)


def _broken_off(figures: CellFigures) -> str | None:
    window = figures.window
    if window.span is None and window.reason == "time_limit":
        return "not every user's first request ended in time (--max-level-seconds)"
    return _REASONS.get(window.reason or "")
