"""Share of the reserved KV bytes that hold tokens, over the time in which requests waited.

share = tokens held x bytes per token of the server's storage / reserved bytes, means over the
samples with a request waiting. Reserved is what the contiguous server has promised to the
requests that run, and of a paged pool the blocks in use; the unused rest of a budget is in
neither, and the share of the whole budget stands beside it.

Tokens held are the server's own count where it states one. Else the client counts: p prompt
tokens and k received make p + k - 1 stored, and of the requests that run but have brought
nothing yet, the first that were sent, the prompts are being stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from harness.analysis.memory import client_tokens_held, sample_times
from harness.analysis.pool import pool_bytes_per_token
from harness.analysis.reservation import predict_occupancy, reservation_of
from harness.analysis.scenario_types import FragmentationRow, HeldSource, Waterfall, WaterfallStep
from harness.analysis.summary_types import CellFigures, Window
from harness.analysis.table import Bools, CellTable, Floats
from harness.analysis.throughput import prompt_tokens
from harness.kv.occupancy import Occupancy
from harness.manifest import BackendInfo, Manifest
from harness.observe import names
from harness.observe.series import BackendSeries

#: How each pair of neighbours in a decomposition differs is told in this order.
_CHANGES = ("batching", "reservation", "layout")


def fragmentation_row(
    info: BackendInfo, figures: CellFigures, table: CellTable, series: BackendSeries | None
) -> FragmentationRow:
    """The row of one cell; figures that were not measured are None."""
    window = figures.window
    times, full = _saturated(series, window)
    held, source = _tokens_held(table, series, times, full)
    predicted = predict_occupancy(info, table, window.users)
    found = reservation_of(info.mode)
    return FragmentationRow(
        cell=figures.cell,
        policy=None if found is None else found.policy,
        samples=int(times.size),
        saturated=int(full.sum()),
        budget_bytes=figures.memory.budget_bytes if figures.memory is not None else None,
        reserved_bytes=_mean(_reserved(info, series, times), full),
        tokens_held=_mean(held, full),
        held_source=source,
        bytes_per_token=_bytes_per_token(info, series),
        held=_mean(_at(series, names.RUNNING, times), full),
        output_tokens_per_s=figures.throughput.output_tokens_per_s,
        predicted=predicted,
        predicted_output_tokens_per_s=_predicted_rate(figures, predicted),
    )


def waterfalls(manifest: Manifest, rows: Sequence[FragmentationRow]) -> tuple[Waterfall, ...]:
    """The rows of each level as steps, in the order of the manifest's backends."""
    order = {info.name: place for place, info in enumerate(manifest.backends)}
    groups: dict[tuple[float, int], list[FragmentationRow]] = {}
    for row in sorted(rows, key=lambda row: order[row.cell.backend]):
        groups.setdefault((row.cell.level, row.cell.repeat), []).append(row)
    return tuple(
        _waterfall(manifest, level, repeat, group)
        for (level, repeat), group in sorted(groups.items())
    )


def _waterfall(
    manifest: Manifest, level: float, repeat: int, rows: Sequence[FragmentationRow]
) -> Waterfall:
    infos = [manifest.backend(row.cell.backend) for row in rows]
    changes: list[str | None] = [None]
    changes += [change(a.mode, b.mode) for a, b in pairwise(infos)]
    steps = tuple(
        WaterfallStep(info.name, info.mode, what, row)
        for info, what, row in zip(infos, changes, rows, strict=True)
    )
    budgets = {info.kv_budget_bytes for info in infos}
    return Waterfall(level, repeat, steps, budgets_differ=len(budgets) > 1)


def change(before: str, after: str) -> str | None:
    """What differs between two modes: ``batching``, ``reservation``, ``layout``; None: unknown.

    A paged server reserves by blocks, which is its layout.
    """
    a, b = reservation_of(before), reservation_of(after)
    if a is None or b is None:
        return None
    layouts = {a.policy == "paged", b.policy == "paged"}
    differs = {
        "batching": a.single != b.single,
        "reservation": a.policy != b.policy and layouts == {False},
        "layout": len(layouts) == 2,
    }
    return " + ".join(name for name in _CHANGES if differs[name]) or None


def _saturated(series: BackendSeries | None, window: Window) -> tuple[Floats, Bools]:
    """(sample times inside the window, which of them had a request waiting)."""
    if series is None or window.span is None:
        return np.empty(0), np.empty(0, dtype=np.bool_)
    times = sample_times(series, *window.span)
    waiting = _at(series, names.WAITING, times)
    if waiting is None:
        return times, np.zeros(times.size, dtype=np.bool_)
    return times, np.asarray(waiting > 0, dtype=np.bool_)


def _at(series: BackendSeries | None, name: str, times: Floats) -> Floats | None:
    """A gauge at the given times; None where it was not measured."""
    gauge = series.get(name) if series is not None else None
    if gauge is None or not len(gauge) or not times.size:
        return None
    return np.asarray(np.interp(times, gauge.t_s, gauge.v), dtype=np.float64)


def _mean(values: Floats | None, full: Bools) -> float | None:
    """Over the saturated samples; over all where none is."""
    if values is None or not values.size:
        return None
    return float(values[full].mean() if full.any() else values.mean())


def _tokens_held(
    table: CellTable, series: BackendSeries | None, times: Floats, full: Bools
) -> tuple[Floats | None, HeldSource | None]:
    stated = _at(series, names.KV_TOKENS_HELD, times)
    if stated is not None:
        return stated, "server"
    if not times.size:
        return None, None
    running = _at(series, names.RUNNING, times)
    return tokens_stored(table, times, running), "client"


def tokens_stored(table: CellTable, times: Floats, running: Floats | None) -> Floats:
    """Tokens whose K and V a server must hold at the given times, counted by the client."""
    with_tokens = table.events > 0
    first = (table.sent_s + table.first_s)[with_tokens]
    last = (table.sent_s + table.last_s)[with_tokens]
    decoding = np.searchsorted(np.sort(first), times, side="right") - np.searchsorted(
        np.sort(last), times, side="right"
    )
    stored = client_tokens_held(table, times) - decoding
    if running is not None:
        stored = stored + _prefilling(table, times, np.rint(running) - decoding)
    return np.asarray(np.maximum(stored, 0.0), dtype=np.float64)


def _prefilling(table: CellTable, times: Floats, counts: Floats) -> Floats:
    """Prompt tokens of the ``counts[i]`` requests sent first of those without a token yet."""
    sent = table.reference_s
    until = np.where(table.events > 0, table.sent_s + table.first_s, table.end_s)
    order = np.argsort(sent, kind="stable")
    sent, until, prompt = sent[order], until[order], prompt_tokens(table)[order]
    found = np.zeros(times.size)
    for index, (at_s, count) in enumerate(zip(times, counts, strict=True)):
        if count >= 1:
            silent = (sent <= at_s) & (until > at_s)
            found[index] = prompt[silent][: int(count)].sum()
    return found


def _reserved(info: BackendInfo, series: BackendSeries | None, times: Floats) -> Floats | None:
    """Of a paged pool, which is set aside whole, the blocks in use."""
    paged = info.mode == "paged"
    return _at(series, names.KV_USED_BYTES if paged else names.KV_RESERVED_BYTES, times)


def _bytes_per_token(info: BackendInfo, series: BackendSeries | None) -> float | None:
    """What one token's K and V take in the server's storage, by what the server states of it."""
    if info.kind == "contiguous":
        return info.kv_bytes_per_token
    return pool_bytes_per_token(series.pool if series is not None else None, info.max_model_len)


def _predicted_rate(figures: CellFigures, predicted: Occupancy | None) -> float | None:
    """Each request that the simulation holds gets a token per measured gap between tokens.

    The gap is the mean over all tokens: a request's own TPOT weighs short answers too much,
    which wait for the prompts of others as long as long ones do.
    """
    first_s, whole_s = figures.latency.ttft_s, figures.latency.e2e_s.mean
    gaps = figures.throughput.counted_output_tokens - first_s.n
    if predicted is None or first_s.mean is None or whole_s is None or gaps <= 0:
        return None
    gap_s = (whole_s - first_s.mean) * first_s.n / gaps
    return predicted.held / gap_s if gap_s > 0 else None


def fragmentation_rows(
    manifest: Manifest,
    cells: Sequence[tuple[CellFigures, CellTable]],
    series: Mapping[str, BackendSeries],
) -> tuple[FragmentationRow, ...]:
    """A row per cell."""
    return tuple(
        fragmentation_row(
            manifest.backend(item.cell.backend), item, table, series.get(item.cell.backend)
        )
        for item, table in cells
    )
