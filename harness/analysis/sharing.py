"""What a prefix cache did: for a shared system prompt, and turn by turn of conversations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from harness.analysis.latency import request_times
from harness.analysis.percentiles import distribution
from harness.analysis.pool import pool_bytes_per_token
from harness.analysis.scenario_types import ConversationRow, PrefixRow, TurnRow
from harness.analysis.summary_types import CellFigures, Level, Window
from harness.analysis.table import Bools, CellTable, Floats
from harness.analysis.throughput import output_tokens, prompt_tokens
from harness.analysis.windows import counted_mask, mean_level
from harness.manifest import BackendInfo
from harness.observe.series import BackendSeries


def prefix_row(figures: CellFigures, table: CellTable) -> PrefixRow:
    """The row of one cell of shared prefixes."""
    good = counted_mask(table, figures.window) & table.ok
    ttft_s = request_times(table).ttft_s
    shared = good & (table.shared_tokens > 0)
    memory = figures.memory
    return PrefixRow(
        cell=figures.cell,
        n=int(good.sum()),
        n_shared=int(shared.sum()),
        planned_ratio=_planned(table, good),
        hit_ratio=memory.prefix_hit_ratio if memory is not None else None,
        ttft_shared_s=distribution(_known(ttft_s[shared])),
        ttft_own_s=distribution(_known(ttft_s[good & ~shared])),
        ttft_s=distribution(_known(ttft_s[good])),
        used_bytes=_mean(memory.used_bytes if memory is not None else None),
        held=_mean(memory.running if memory is not None else None),
    )


def turn_rows(figures: CellFigures, table: CellTable) -> tuple[TurnRow, ...]:
    """A row per turn of the counted requests."""
    good = counted_mask(table, figures.window) & table.ok
    ttft_s = request_times(table).ttft_s
    rows = []
    for turn in np.unique(table.turn[good & (table.turn > 0)]):
        mine = good & (table.turn == turn)
        cached = table.cached_tokens[mine]
        rows.append(
            TurnRow(
                cell=figures.cell,
                turn=int(turn),
                n=int(mine.sum()),
                prompt_tokens=float(prompt_tokens(table)[mine].mean()),
                known_tokens=float(np.maximum(table.shared_tokens[mine], 0).mean()),
                cached_tokens=float(cached.mean()) if (cached >= 0).all() else None,
                ttft_s=distribution(_known(ttft_s[mine])),
            )
        )
    return tuple(rows)


def conversation_row(
    info: BackendInfo, figures: CellFigures, table: CellTable, series: BackendSeries | None
) -> ConversationRow:
    """The row of one level of conversations."""
    good = counted_mask(table, figures.window) & table.ok
    memory = figures.memory
    pool = series.pool if series is not None else None
    used = memory.used_bytes if memory is not None else None
    stated = info.kv_bytes_per_token if info.kind == "contiguous" else None
    return ConversationRow(
        cell=figures.cell,
        conversations=int(np.unique(table.conversation[good]).size),
        requests=int(good.sum()),
        planned_ratio=_planned(table, good),
        hit_ratio=memory.prefix_hit_ratio if memory is not None else None,
        used_bytes=_mean(used),
        used_bytes_max=used.maximum if used is not None else None,
        between_tokens=between_turns(table, figures.window),
        bytes_per_token=stated or pool_bytes_per_token(pool, info.max_model_len),
    )


def between_turns(table: CellTable, window: Window) -> float | None:
    """Mean tokens of the conversations that were between two turns inside the window.

    From the end of an answer until the next turn is sent a conversation has its prompt and
    its answer. After the last turn it has nothing that is needed again.
    """
    if window.span is None:
        return None
    said = prompt_tokens(table) + output_tokens(table)
    order = np.lexsort((table.turn, table.conversation))
    start, end, tokens = [], [], []
    for a, b in pairwise(order):
        if table.conversation[a] == table.conversation[b] and table.turn[b] == table.turn[a] + 1:
            start.append(float(table.end_s[a]))
            end.append(float(table.reference_s[b]))
            tokens.append(float(said[a]))
    if not start:
        return 0.0
    times = np.array(start + end)
    steps = np.array(tokens + [-amount for amount in tokens])
    rank = np.argsort(times, kind="stable")
    return mean_level(times[rank], np.cumsum(steps[rank]), *window.span)


def _planned(table: CellTable, rows: Bools) -> float | None:
    """Tokens that were meant to be shared / prompt tokens."""
    asked = table.asked_prompt[rows].sum()
    return float(np.maximum(table.shared_tokens[rows], 0).sum() / asked) if asked else None


def _known(values: Floats) -> Floats:
    return np.asarray(values[~np.isnan(values)], dtype=np.float64)


def _mean(level: Level | None) -> float | None:
    return None if level is None else level.mean
