"""The table that explains a backend's memory: one column per level, one row per difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis.reconcile_types import Reason, Reconciled, Stage, StageName, Unreconciled
from harness.analysis.summary_types import RunSummary
from harness.report.units import ABSENT, bytes_text, count_text, level_text, percent_text

#: Levels side by side in one table.
MAX_COLUMNS = 6

REASONS: dict[Reason, str] = {
    "dtype": "dtype wider than the config's",
    "replication": "copies of KV heads",
    "window": "tokens beyond a window",
    "other_layers": "layers of another kind",
    "scales": "scales of quantized values",
    "residual": "newest tokens, not quantized",
    "block_rounding": "rounding up to blocks",
    "padding": "padding to the longest row",
    "slot": "rest of each request's slot",
    "budget_remainder": "budget beyond whole blocks",
    "null_block": "null block",
    "free_blocks": "free blocks of the pool",
    "promise": "promised, not stored yet",
    "empty_slots": "empty slots",
    "block_tables": "block tables",
    "weights": "weights",
    "before_load": "process before the load",
    "temporaries": "temporaries, peak - steady",
    "allocator": "allocator, kept for reuse",
    "cuda_context": "CUDA context and graphs",
}
STAGES: dict[StageName, str] = {
    "used": "used",
    "reserved": "reserved",
    "device": "device",
    "process": "process (resident)",
}
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Explained:
    """One table: heads, and rows of a label and one text per head."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    #: below the table
    notes: tuple[str, ...]


def explained_tables(summary: RunSummary, backend: str) -> tuple[Explained, ...]:
    """The tables of one backend; none where nothing is known of its memory."""
    return tables_of([item for item in summary.reconciled if item.cell.backend == backend])


def tables_of(
    found: Sequence[Reconciled | Unreconciled], columns: int = MAX_COLUMNS
) -> tuple[Explained, ...]:
    """Tables of at most ``columns`` levels each; notes, and why levels are missing, at the end."""
    done = [item for item in found if isinstance(item, Reconciled)]
    notes = _notes(done) if done else ()
    notes += _missing([item for item in found if isinstance(item, Unreconciled)])
    named = len({item.cell.backend for item in done}) > 1
    tables = [_table(done[i : i + columns], named) for i in range(0, len(done), columns)]
    if not tables:
        return (Explained((), (), notes),) if notes else ()
    last = tables[-1]
    return (*tables[:-1], Explained(last.heads, last.rows, notes))


def latest(found: Sequence[Reconciled | Unreconciled]) -> tuple[Reconciled, ...]:
    """Of each backend the last level that could be explained."""
    last = {item.cell.backend: item for item in found if isinstance(item, Reconciled)}
    return tuple(last.values())


def _missing(items: Sequence[Unreconciled]) -> tuple[str, ...]:
    """One line per reason, with the levels that it holds for."""
    reasons: dict[str, list[str]] = {}
    for item in items:
        reasons.setdefault(item.reason, []).append(level_text(item.cell.level))
    return tuple(
        f"not explained at level {', '.join(levels)}: {reason}"
        for reason, levels in reasons.items()
    )


def _table(items: Sequence[Reconciled], named: bool) -> Explained:
    rows: list[tuple[str, ...]] = [
        _row("tokens held, by the client", items, lambda item: count_text(round(item.tokens))),
    ]
    if any(item.shared_bytes for item in items):
        rows.append(_row("needed, were no prefix shared", items, lambda i: _bytes(_unshared(i))))
        rows.append(_row("- shared prefixes", items, lambda item: _bytes(item.shared_bytes)))
    rows.append(_row("needed, by theory", items, lambda item: _bytes(item.needed_bytes)))
    for name in STAGES:
        rows += _stage_rows(name, items)
    return Explained(
        heads=("mean of the moments", *(_head(item, named) for item in items)),
        rows=tuple(rows),
        notes=(),
    )


def _stage_rows(name: StageName, items: Sequence[Reconciled]) -> list[tuple[str, ...]]:
    if all(item.stage(name) is None for item in items):
        return []
    reasons = [
        reason
        for reason in REASONS
        if any(
            step.reason == reason
            for item in items
            if (stage := item.stage(name)) is not None
            for step in stage.steps
        )
    ]
    rows: list[tuple[str, ...]] = []
    for reason in reasons:
        texts = (_step(item.stage(name), reason) for item in items)
        rows.append((f"+ {REASONS[reason]}", *texts))
    rows.append(_row(f"+ {UNEXPLAINED}", items, lambda item: unexplained_text(item.stage(name))))
    rows.append(_row(f"= {STAGES[name]}", items, lambda item: _end(item.stage(name))))
    return rows


def unexplained_text(stage: Stage | None) -> str:
    """``-1.20 KiB (0.2 %)``: its sign, its size, and its share of the stage's end."""
    if stage is None:
        return ABSENT
    share = stage.unexplained_share
    text = bytes_text(float(stage.unexplained_bytes))
    if not stage.unexplained_bytes or share is None:
        return text
    return f"{text} ({percent_text(share) if share >= 0.0005 else '< 0.1 %'})"


def _row(
    label: str, items: Sequence[Reconciled], text: Callable[[Reconciled], str]
) -> tuple[str, ...]:
    return (label, *(text(item) for item in items))


def _head(item: Reconciled, named: bool) -> str:
    """Lengths and level; behind the backend's name where a table has several."""
    cell = item.cell
    name = f"{cell.backend} " if named else ""
    repeat = f" #{cell.repeat + 1}" if cell.repeat else ""
    return f"{name}{cell.prompt_tokens}+{cell.output_tokens} at {level_text(cell.level)}{repeat}"


def _step(stage: Stage | None, reason: Reason) -> str:
    amounts = [step.amount_bytes for step in stage.steps if step.reason == reason] if stage else []
    return _bytes(sum(amounts)) if amounts else ABSENT


def _end(stage: Stage | None) -> str:
    return ABSENT if stage is None else _bytes(stage.end_bytes)


def _unshared(item: Reconciled) -> int:
    return item.needed_bytes + (item.shared_bytes or 0)


def _bytes(value: int | None) -> str:
    return bytes_text(None if value is None else float(value))


def _notes(items: Sequence[Reconciled]) -> tuple[str, ...]:
    theory = {
        "config": "the model's config",
        "server": "the bytes per token that the server states of itself, which is no second source",
    }[items[0].theory]
    each = f"{items[0].bytes_per_token:,.0f} B"
    moments = sum(item.moments for item in items)
    samples = sum(item.samples for item in items)
    lines = [
        f"Theory: {each} per token, from {theory}. Compared at {moments} of {samples} samples: "
        "those at which client and server agree on how many requests there are and, where there "
        "are enough, no prompt is being read."
    ]
    absent = dict.fromkeys(line for item in items for line in item.absent)
    lines += [f"Absent: {line}." for line in absent]
    return tuple(lines)
