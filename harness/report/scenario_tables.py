"""The tables that only some scenarios have, formatted once for terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from harness.analysis.percentiles import Distribution
from harness.analysis.scenario_types import (
    ConversationRow,
    FragmentationRow,
    PrefixRow,
    ScenarioFigures,
    TurnRow,
    Waterfall,
    WaterfallStep,
)
from harness.records import CellKey
from harness.report.scenario_notes import (
    conversation_notes,
    fragmentation_notes,
    prefix_notes,
    turn_notes,
    waterfall_notes,
)
from harness.report.units import ABSENT, bytes_text, level_text, ms_text, number, percent_text

T = TypeVar("T")


@dataclass(frozen=True)
class TextTable:
    """A table ready to be shown: heads (title, unit, explanation), rows of text, and notes."""

    title: str
    heads: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    #: which columns a terminal has room for, by their places
    narrow: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Column(Generic[T]):
    title: str
    unit: str
    text: Callable[[T], str]
    help: str = ""
    #: left out where there is little room
    wide_only: bool = False


def scenario_tables(figures: ScenarioFigures) -> list[TextTable]:
    """The tables of a run's own scenario; empty for an ordinary run."""
    tables = [_waterfall(item, figures.waterfalls) for item in figures.waterfalls]
    if figures.fragmentation:
        tables.append(_fragmentation(figures.fragmentation))
    if figures.prefixes:
        tables.append(_prefixes(figures.prefixes))
    if figures.conversations:
        tables.append(_conversations(figures.conversations))
    if figures.turns:
        tables.append(_turns(figures.turns))
    return tables


def _made(
    title: str, columns: Sequence[_Column[T]], rows: Sequence[T], notes: Sequence[str] = ()
) -> TextTable:
    return TextTable(
        title,
        tuple((column.title, column.unit, column.help) for column in columns),
        tuple(tuple(column.text(row) for column in columns) for row in rows),
        tuple(notes),
        tuple(place for place, column in enumerate(columns) if not column.wide_only),
    )


def _one_level(cells: Sequence[CellKey]) -> bool:
    """Whether a column of levels would say the same in every row."""
    return len({_level(cell) for cell in cells}) < 2


def _level(cell: CellKey) -> str:
    repeat = f" #{cell.repeat + 1}" if cell.repeat else ""
    return level_text(cell.level) + repeat


def _fragmentation(rows: Sequence[FragmentationRow]) -> TextTable:
    columns: list[_Column[FragmentationRow]] = [
        _Column("server", "", lambda r: r.cell.backend),
        _Column("mode", "", lambda r: r.cell.mode),
        _Column(
            "level",
            "",
            lambda r: _level(r.cell),
            "concurrent requests (closed loop)",
            wide_only=_one_level([row.cell for row in rows]),
        ),
        _Column(
            "reserved KV holds tokens",
            "measured",
            lambda r: percent_text(r.share),
            "tokens held x the server's bytes per token / bytes reserved, while requests waited",
        ),
        _Column(
            "reserved KV holds tokens",
            "simulated",
            lambda r: percent_text(r.predicted.share if r.predicted else None),
            "the same requests and the same budget, reserved the same way",
        ),
        _Column(
            "of budget",
            "measured",
            lambda r: percent_text(r.budget_share),
            "share of all KV memory that held tokens",
            wide_only=True,
        ),
        _Column(
            "of budget",
            "simulated",
            lambda r: percent_text(r.predicted.pool_share if r.predicted else None),
            wide_only=True,
        ),
        _Column("requests held", "measured", lambda r: number(r.held), "running at once, mean"),
        _Column(
            "requests held",
            "simulated",
            lambda r: number(r.predicted.held if r.predicted else None),
        ),
        _Column("output tok/s", "measured", lambda r: number(r.output_tokens_per_s)),
        _Column(
            "output tok/s",
            "simulated",
            lambda r: number(r.predicted_output_tokens_per_s),
            "requests held by the simulation / measured mean gap between tokens",
        ),
        _Column(
            "samples",
            "full / all",
            lambda r: f"{r.saturated} / {r.samples}",
            "scrapes of the window with requests waiting, and all",
            wide_only=True,
        ),
    ]
    title = "Reserved KV memory that held tokens"
    return _made(title, columns, rows, fragmentation_notes(rows))


def _waterfall(found: Waterfall, every: Sequence[Waterfall]) -> TextTable:
    before = dict(zip(found.steps[1:], found.steps, strict=False))

    def times(get: Callable[[WaterfallStep], float | None]) -> Callable[[WaterfallStep], str]:
        def text(step: WaterfallStep) -> str:
            last = before.get(step)
            old, new = (get(last) if last else None), get(step)
            return f"x {number(new / old)}" if old and new is not None else ABSENT

        return text

    columns: list[_Column[WaterfallStep]] = [
        _Column("server", "", lambda s: s.backend),
        _Column("mode", "", lambda s: s.mode),
        _Column("what is new", "", lambda s: s.change or ABSENT, "against the server above"),
        _Column("requests held", "measured", lambda s: number(s.held)),
        _Column("requests held", "against above", times(lambda s: s.held)),
        _Column(
            "requests held",
            "simulated",
            lambda s: number(s.row.predicted.held if s.row.predicted else None),
        ),
        _Column("output tok/s", "measured", lambda s: number(s.output_tokens_per_s)),
        _Column("output tok/s", "against above", times(lambda s: s.output_tokens_per_s)),
    ]
    where = "" if len(every) == 1 else f", {level_text(found.level)} requests in flight"
    where += f" #{found.repeat + 1}" if found.repeat else ""
    title = f"From one request at a time to a paged cache{where}"
    return _made(title, columns, found.steps, waterfall_notes(found))


def _prefixes(rows: Sequence[PrefixRow]) -> TextTable:
    columns: list[_Column[PrefixRow]] = [
        _Column("server", "", lambda r: r.cell.backend),
        _Column("level", "", lambda r: _level(r.cell), "concurrent requests (closed loop)"),
        _Column("asked", "", lambda r: r.cell.variant, "share that begins with the system prompt"),
        _Column("n", "", lambda r: f"{r.n:,}"),
        _Column(
            "could be found",
            "",
            lambda r: percent_text(r.planned_ratio),
            "tokens of shared system prompts / prompt tokens",
        ),
        _Column(
            "was found",
            "",
            lambda r: percent_text(r.hit_ratio),
            "prompt tokens that the server found in its prefix cache / looked up",
        ),
        _Column("TTFT p50", "shared, ms", lambda r: _p50(r.ttft_shared_s)),
        _Column("TTFT p50", "own, ms", lambda r: _p50(r.ttft_own_s)),
        _Column("TTFT p50", "all, ms", lambda r: _p50(r.ttft_s), wide_only=True),
        _Column("running", "mean", lambda r: number(r.held), wide_only=True),
        _Column("KV used", "mean", lambda r: bytes_text(r.used_bytes), wide_only=True),
        _Column("KV used", "per request", lambda r: bytes_text(r.used_bytes_each)),
    ]
    return _made("A shared system prompt", columns, rows, prefix_notes(rows))


def _conversations(rows: Sequence[ConversationRow]) -> TextTable:
    columns: list[_Column[ConversationRow]] = [
        _Column("server", "", lambda r: r.cell.backend),
        _Column("level", "", lambda r: _level(r.cell), "conversations at once"),
        _Column("begun or going on", "", lambda r: f"{r.conversations:,}"),
        _Column("turns", "counted", lambda r: f"{r.requests:,}"),
        _Column(
            "could be found",
            "",
            lambda r: percent_text(r.planned_ratio),
            "prompt tokens that the server had seen or generated before / prompt tokens",
        ),
        _Column(
            "was found",
            "",
            lambda r: percent_text(r.hit_ratio),
            "prompt tokens found in the prefix cache / looked up",
        ),
        _Column("kept", "", lambda r: percent_text(r.kept_share), "found / could be found"),
        _Column("KV used", "mean", lambda r: bytes_text(r.used_bytes), "by turns in progress"),
        _Column("KV used", "max", lambda r: bytes_text(r.used_bytes_max)),
        _Column(
            "between turns",
            "mean",
            lambda r: bytes_text(r.between_bytes),
            "what conversations between two turns would take if all of it were kept",
        ),
    ]
    return _made("Conversations", columns, rows, conversation_notes(rows))


def _turns(rows: Sequence[TurnRow]) -> TextTable:
    columns: list[_Column[TurnRow]] = [
        _Column("server", "", lambda r: r.cell.backend),
        _Column("level", "", lambda r: _level(r.cell), "conversations at once"),
        _Column("turn", "", lambda r: str(r.turn)),
        _Column("n", "", lambda r: f"{r.n:,}"),
        _Column("prompt", "tokens", lambda r: number(r.prompt_tokens)),
        _Column("said before", "tokens", lambda r: number(r.known_tokens)),
        _Column("found", "tokens", lambda r: number(r.cached_tokens), "as the server states it"),
        _Column("TTFT p50", "ms", lambda r: _p50(r.ttft_s)),
        _Column("TTFT p95", "ms", lambda r: _percentile(r.ttft_s, 95)),
    ]
    return _made("Turn by turn", columns, rows, turn_notes(rows))


def _p50(found: Distribution) -> str:
    return _percentile(found, 50)


def _percentile(found: Distribution, p: int) -> str:
    item = found.at(p)
    return ms_text(item.value, thin=item.insufficient and item.value is not None)
