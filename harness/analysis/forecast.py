"""The measured knee held against the prediction that fits the arrivals on record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.analysis.difference import difference_lines
from harness.analysis.forecast_types import Fits, Forecast
from harness.analysis.in_step import MIN_USERS, Pattern, pattern
from harness.analysis.pool import no_prediction
from harness.analysis.summary_types import CellFigures
from harness.analysis.table import CellTable, Ints
from harness.analysis.throughput import output_tokens, prompt_tokens
from harness.analysis.verdict_types import Knee
from harness.analysis.windows import counted_mask
from harness.kv.capacity import ceil_div
from harness.kv.forecast import LengthCounts, Predicted, predict
from harness.kv.steady_capacity import growing_demand
from harness.manifest import BackendInfo
from harness.observe.series import KvPool
from harness.records import CellKey, Loop
from harness.workload import Asks, LengthMix

#: from here on a level counts as in step: nearer to that than to the other
_IN_STEP = 0.5


def forecast(
    info: BackendInfo,
    pool: KvPool | None,
    loop: Loop,
    asks: Asks | None,
    cells: Sequence[CellFigures],
    tables: Mapping[CellKey, CellTable],
    knee: Knee,
) -> Forecast | None:
    """Both predictions for the lengths on record, and which of them fits; None without one.

    ``cells`` are those of one workload of one backend, ``knee`` its capacity knee. Rates are not
    predicted, nor are prompts that share prefixes, nor a pool of several groups of layers.
    """
    shares = asks is not None and not isinstance(asks, LengthMix)
    if loop == "open" or shares or no_prediction(pool, info.max_model_len) is not None:
        return None
    lengths = recorded_lengths(info, cells, tables)
    found = predict(info, lengths) if lengths else None
    if found is None:
        return None
    fits, why = _which(info, found, lengths, cells, tables, knee)
    chosen = Forecast(found.worst, found.steady, fits, why)
    return replace(chosen, difference=difference_lines(info, lengths, chosen, knee, cells))


def recorded_lengths(
    info: BackendInfo, cells: Sequence[CellFigures], tables: Mapping[CellKey, CellTable]
) -> LengthCounts:
    """Counted successes by (prompt, output) tokens; of a server that reserves, output as asked."""
    found: Counter[tuple[int, int]] = Counter()
    for cell in cells:
        table = tables.get(cell.cell)
        if table is None:
            continue
        rows = counted_mask(table, cell.window) & table.ok
        found.update(_pairs(table, rows.nonzero()[0], promised=info.kind == "contiguous"))
    if not found and cells:
        first = cells[0].cell
        found[first.prompt_tokens, first.output_tokens] = 1
    return found


def _pairs(table: CellTable, rows: Ints, *, promised: bool) -> dict[tuple[int, int], int]:
    output = table.asked_output if promised else output_tokens(table)
    both = np.stack([prompt_tokens(table)[rows], output[rows]], axis=1)
    pairs, counts = np.unique(both, axis=0, return_counts=True)
    return {(int(prompt), int(out)): int(n) for (prompt, out), n in zip(pairs, counts, strict=True)}


def _which(
    info: BackendInfo,
    found: Predicted,
    lengths: LengthCounts,
    cells: Sequence[CellFigures],
    tables: Mapping[CellKey, CellTable],
    knee: Knee,
) -> tuple[Fits, str]:
    """Which prediction fits the records, and why."""
    mixed = len(lengths) > 1
    if info.kind != "vllm":
        if mixed:
            return "steady", "this server reserves at a request's start, and long ones stay longer"
        return "worst", "this server reserves a request's full length at its start"
    if found.worst.requests == found.steady.requests:
        return "worst", f"in step or not, {found.worst.requests:,} fit"
    seen = _pattern(info, lengths, cells, tables, knee)
    share = None if seen is None else seen.share
    if seen is None or share is None:
        no_level = f"no level at which nobody waited has {MIN_USERS} users or more"
        if seen is not None:
            no_level = f"at {seen.users} users in step and out of step are the same"
        if mixed:
            return "steady", f"requests of many lengths do not stay in step ({no_level})"
        return "worst", f"equal requests of a closed loop start in step ({no_level})"
    text = (
        f"at {seen.users} users, where nobody waited, the records show a need of "
        f"{seen.needed:,.0f} blocks (99 % of the time within it); in step it would be "
        f"{seen.in_step:,.0f}, out of step {seen.out_of_step:,.0f}"
    )
    if share >= _IN_STEP:
        return "worst", f"{text}: requests are in step"
    return "steady", f"{text}: requests are out of step"


def _pattern(
    info: BackendInfo,
    lengths: LengthCounts,
    cells: Sequence[CellFigures],
    tables: Mapping[CellKey, CellTable],
    knee: Knee,
) -> Pattern | None:
    """That of the highest level below the knee at which nobody was kept out."""
    size = info.block_size or 1
    free = [
        cell
        for cell in cells
        if cell.unjudged is None
        and cell.admission.state in ("free", "compute")
        and (knee.first_bad is None or cell.cell.level < knee.first_bad)
        and cell.window.users >= MIN_USERS
    ]
    if not free:
        return None
    best = max(free, key=lambda cell: cell.cell.level)
    table = tables.get(best.cell)
    if table is None:
        return None
    demand = growing_demand(lengths, lambda tokens: ceil_div(tokens, size), size)
    n = sum(lengths.values())
    # the last token is never stored
    full = sum(ceil_div(max(sum(pair) - 1, 1), size) * m for pair, m in lengths.items()) / n
    return pattern(table, best.window, size, demand, full)
