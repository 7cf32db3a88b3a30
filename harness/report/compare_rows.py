"""A comparison of two runs as text: one row per level and figure, for every output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.compare.resample import METHOD
from harness.compare.types import (
    CellPair,
    Change,
    Comparison,
    MetricName,
    Mismatch,
    Outcome,
)
from harness.kv.units import counted
from harness.report.units import (
    ABSENT,
    level_text,
    ms_text,
    number,
    percent_text,
    signed,
    without_folder,
)

TITLES: dict[MetricName, tuple[str, str]] = {
    "ttft_p50_s": ("TTFT p50", "ms"),
    "ttft_p95_s": ("TTFT p95", "ms"),
    "ttft_p99_s": ("TTFT p99", "ms"),
    "tpot_p50_s": ("TPOT p50", "ms"),
    "tpot_p95_s": ("TPOT p95", "ms"),
    "tpot_p99_s": ("TPOT p99", "ms"),
    "e2e_p50_s": ("E2E p50", "ms"),
    "e2e_p95_s": ("E2E p95", "ms"),
    "output_tokens_per_s": ("output", "tok/s"),
    "kv_bytes_per_token": ("KV / token", "B"),
    "failure_share": ("failed", ""),
}
OUTCOMES: dict[Outcome, str] = {
    "better": "better",
    "worse": "worse",
    "same": "no difference",
    "unsure": "no verdict",
}
HEADS = ("level", "figure", "A", "B", "change", "95 % interval", "B is")
MARK = "!"
FORCED = (
    "Compared by --force although the two runs answer different questions: no figure below says "
    "which is better."
)


@dataclass(frozen=True)
class Group:
    """The levels of one backend, mode and workload."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    #: why figures of its levels are not trusted
    notes: tuple[str, ...]
    pairs: tuple[CellPair, ...]


def groups(comparison: Comparison) -> tuple[Group, ...]:
    """The pairs by backend, mode, prompt, output and variant, in A's order."""
    found: dict[tuple[str, str, int, int, str], list[CellPair]] = {}
    for pair in comparison.pairs:
        cell = pair.cell
        key = (cell.backend, cell.mode, cell.prompt_tokens, cell.output_tokens, cell.variant)
        found.setdefault(key, []).append(pair)
    return tuple(_group(key, pairs) for key, pairs in found.items())


def _group(key: tuple[str, str, int, int, str], pairs: Sequence[CellPair]) -> Group:
    backend, mode, prompt, output, variant = key
    title = f"{backend} ({mode}), {prompt}+{output} tokens"
    notes: list[str] = []
    rows = [row for pair in pairs for row in _rows(pair, notes)]
    return Group(
        f"{title}, {variant}" if variant else title, tuple(rows), tuple(notes), tuple(pairs)
    )


def _rows(pair: CellPair, notes: list[str]) -> Iterator[tuple[str, ...]]:
    level = level_text(pair.cell.level)
    if pair.cell.repeat:
        level += f" #{pair.cell.repeat + 1}"
    notes += [f"{MARK} level {level}, all figures: {mark}" for mark in pair.marks]
    for place, change in enumerate(pair.changes):
        title, unit = TITLES[change.metric.name]
        named = f"{title} {unit}".strip()
        marked = bool(pair.marks or change.marks)
        notes += [f"{MARK} level {level}, {title}: {mark}" for mark in change.marks]
        yield (
            level if place == 0 else "",
            named,
            value_text(change, change.a),
            value_text(change, change.b),
            change_text(change),
            interval_text(change),
            OUTCOMES[change.outcome] + (f" {MARK}" if marked else ""),
        )


def value_text(change: Change, value: float | None) -> str:
    """A figure in its unit, without it."""
    name = change.metric.name
    if value is None:
        return ABSENT
    if name == "failure_share":
        return percent_text(value)
    if name == "kv_bytes_per_token":
        return f"{value:,.0f}"
    return number(value) if name == "output_tokens_per_s" else ms_text(value)


def change_text(change: Change) -> str:
    """``+8.3 %``, or of shares ``+1.2 points``."""
    if change.change is None:
        return ABSENT
    value = change.change.value
    if change.metric.kind == "difference":
        return f"{signed(value * 100)} points"
    return f"{signed((value - 1.0) * 100)} %"


def interval_text(change: Change) -> str:
    """Both ends in the unit of the change."""
    found = change.change
    if found is None:
        return ABSENT
    less = 1.0 if change.metric.kind == "ratio" else 0.0
    return f"{signed((found.low - less) * 100)} to {signed((found.high - less) * 100)}"


def head_lines(comparison: Comparison) -> list[str]:
    """What is compared, what came of it, and what must be known of it."""
    parts = [
        f"{comparison.count(outcome):,} {name}"
        for outcome, name in OUTCOMES.items()
        if comparison.count(outcome)
    ]
    levels = counted(len(comparison.pairs), "level")
    lines = [f"B against A over {levels}: {', '.join(parts)}"]
    if comparison.forced:
        lines.append(FORCED)
    return [*lines, *comparison.notes]


def mismatch_lines(comparison: Comparison) -> list[str]:
    """What differs between the two runs, one fact a line."""
    return [mismatch_text(item) for item in comparison.mismatches]


def mismatch_text(item: Mismatch) -> str:
    """``differs: paged.dtype, A bfloat16, B float16``."""
    kind = "NOT COMPARABLE" if item.refuses else "differs"
    return f"{kind}: {item.fact}, A {without_folder(item.a)}, B {without_folder(item.b)}"


def unmatched_lines(comparison: Comparison) -> list[str]:
    """Levels that one run alone has."""
    return [
        f"only in {which}: {', '.join(cell.label_in(comparison.loop) for cell in cells)}"
        for which, cells in (("A", comparison.only_a), ("B", comparison.only_b))
        if cells
    ]


def method_lines() -> list[str]:
    """How the figures came about."""
    return [
        f"Latencies, rates and KV bytes per token: B / A with the {METHOD}.",
        "KV / token is bytes in use over places for tokens: what is held, rounded up to blocks or "
        "slots as the layout does.",
        "Failures: B - A in points, Newcombe's interval of two shares.",
        "Better and worse are said where the interval leaves out no change at all; of latencies, "
        "bytes and failures less is better, of throughput more. Over many figures one in twenty "
        "is said to differ by chance.",
    ]
