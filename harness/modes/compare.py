"""The table of modes: each figure, and its ratio to the baseline's at the same level. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.summary_types import CellFigures, MemoryFigures, RunSummary
from harness.errors import UsageError
from harness.modes.asked import BASELINE
from harness.report.units import ABSENT, THIN, bytes_text, level_text, ms_text, number


@dataclass(frozen=True)
class Outcome:
    """What became of one mode: its run analysed, or why there is none."""

    mode: str
    summary: RunSummary | None
    #: why it could not be started or measured
    reason: str | None = None
    #: which command measured it
    call: str | None = None

    @property
    def without_figures(self) -> str | None:
        """Why it says nothing of its mode; None when some request was answered."""
        if self.summary is not None and any(cell.counts.ok for cell in self.summary.cells):
            return None
        return self.reason or "no request was answered"


@dataclass(frozen=True)
class Figure:
    """One figure of a cell: how it is named, taken and written."""

    title: str
    unit: str
    get: Callable[[CellFigures], float | None]
    text: Callable[[float | None], str]
    thin: Callable[[CellFigures], bool] = lambda _: False


def _latency(title: str, name: str, p: int) -> Figure:
    return Figure(
        title,
        f"p{p} ms",
        lambda cell: getattr(cell.latency, name).value(p),
        ms_text,
        lambda cell: bool(getattr(cell.latency, name).at(p).insufficient),
    )


def _largest(title: str, name: str) -> Figure:
    def get(cell: CellFigures) -> float | None:
        memory: MemoryFigures | None = cell.memory
        level = getattr(memory, name) if memory is not None else None
        return None if level is None else float(level.maximum)

    return Figure(title, "max", get, bytes_text)


FIGURES: tuple[Figure, ...] = (
    _latency("TTFT", "ttft_s", 50),
    _latency("TTFT", "ttft_s", 95),
    _latency("TPOT", "tpot_s", 50),
    _latency("TPOT", "tpot_s", 95),
    Figure("output", "tok/s", lambda cell: cell.throughput.output_tokens_per_s, number),
    _largest("KV used", "used_bytes"),
    _largest("KV reserved", "reserved_bytes"),
)
HEADS: tuple[tuple[str, str], ...] = (
    ("mode", ""),
    ("level", ""),
    ("n", ""),
    *((figure.title, figure.unit) for figure in FIGURES),
    ("note", ""),
)


def mode_rows(outcomes: Sequence[Outcome], *, stacked: bool = False) -> list[tuple[str, ...]]:
    """One row per mode and level under ``HEADS``; a refused mode is a row with its reason.

    Ratios stand behind their figures, or ``stacked`` below them, for narrow places.
    """
    basis = _baseline(outcomes)
    rows: list[tuple[str, ...]] = []
    for outcome in outcomes:
        cells = outcome.summary.cells if outcome.summary is not None else ()
        rows += [_row(outcome, cell, basis.get(cell.cell.level), stacked) for cell in cells]
        if not cells:
            blank = [ABSENT] * (len(HEADS) - 2)
            rows.append((outcome.mode, *blank, outcome.reason or "no level was measured"))
    return rows


def require_alike(outcomes: Sequence[Outcome]) -> None:
    """Raise UsageError when the modes were not asked the same, or not on the same machine."""
    known = [o for o in outcomes if o.summary is not None]
    for other in known[1:]:
        first = known[0].summary
        if first is None or other.summary is None:
            continue
        one, two = (_shared(s.manifest.fingerprint) for s in (first, other.summary))
        different = sorted(key for key in {**one, **two} if one.get(key) != two.get(key))
        if different:
            raise UsageError(
                f"{known[0].mode} and {other.mode} cannot be compared: they differ in "
                f"{', '.join(different)}; measure all modes with the same options"
            )


#: Facts of a server that must be the same in every mode; what a mode changes is left out.
_SERVER_FACTS = ("model", "dtype", "max_model_len", "engine_version", "threads", "libraries")


def _shared(facts: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value
        for key, value in facts.items()
        if key.startswith(("workload.", "harness.", "hardware."))
        or key.rpartition(".")[2] in _SERVER_FACTS
    }


def _baseline(outcomes: Sequence[Outcome]) -> dict[float, CellFigures]:
    for outcome in outcomes:
        if outcome.mode == BASELINE and outcome.summary is not None:
            return {cell.cell.level: cell for cell in outcome.summary.cells}
    return {}


def _row(
    outcome: Outcome, cell: CellFigures, basis: CellFigures | None, stacked: bool
) -> tuple[str, ...]:
    ratios = basis is not None and outcome.mode != BASELINE
    return (
        outcome.mode,
        level_text(cell.cell.level),
        f"{cell.counts.ok:,}",
        *(_text(figure, cell, basis if ratios else None, stacked) for figure in FIGURES),
        _note(outcome, cell),
    )


def _text(figure: Figure, cell: CellFigures, basis: CellFigures | None, stacked: bool) -> str:
    value = figure.get(cell)
    text = figure.text(value) + (THIN if value is not None and figure.thin(cell) else "")
    against = figure.get(basis) if basis is not None else None
    if value is None or not against:
        return text
    ratio = f"{number(value / against)}x"
    return f"{text}\n{ratio}" if stacked else f"{text} ({ratio})"


def _note(outcome: Outcome, cell: CellFigures) -> str:
    parts = [outcome.reason] if outcome.reason else []
    if cell.counts.failed:
        parts.append(f"{cell.counts.failed} failed")
    if cell.unjudged is not None:
        parts.append(f"no verdict: {cell.unjudged}")
    return "; ".join(parts)
