"""Laws fitted over the cells of a run: KV bytes, prefill's square, decode against context.

Latencies are fitted at one request at a time only: beside others they say more of the batch than
of the length. A law that the lengths of a run cannot tell is absent, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness.analysis.fit_types import Fit, FitKind
from harness.analysis.fits import Fitted, fit, polynomial
from harness.analysis.holdings import Moment
from harness.analysis.latency import request_times
from harness.analysis.reconcile_cells import RunCell
from harness.analysis.reconcile_theory import KvTheory
from harness.analysis.table import CellTable, Floats, Ints
from harness.analysis.throughput import output_tokens, prompt_tokens
from harness.kv.units import counted

#: Fewer moments say nothing of a slope.
MIN_MOMENTS = 8
#: Different prompt lengths that a law of that degree needs, and how far apart the ends lie.
MIN_LENGTHS = {"ttft": 4, "tpot": 3}
MIN_SPREAD = {"ttft": 4.0, "tpot": 2.0}
#: The growth per token without a cache is fitted over contexts that differ by this factor.
CACHE_OFF_SPREAD = 1.2
#: Relative differences of places per request below this cannot show a constant.
_ALIKE = 1e-3

Group = tuple[str, str]


def fit_cells(cells: Sequence[RunCell]) -> tuple[Fit, ...]:
    """The laws of each backend and mode, over all of its cells, in the order of the cells."""
    groups: dict[Group, list[RunCell]] = {}
    for cell in cells:
        groups.setdefault((cell.table.cell.backend, cell.table.cell.mode), []).append(cell)
    found: list[Fit] = []
    for (backend, mode), members in groups.items():
        laws: list[Callable[[str, str, Sequence[RunCell]], Fit]] = [_ttft, _tpot]
        laws.insert(0, _cache_off if mode.startswith("off") else _kv_bytes)
        found += [law(backend, mode, members) for law in laws]
    return tuple(found)


def _kv_bytes(backend: str, mode: str, cells: Sequence[RunCell]) -> Fit:
    """Bytes in use = constant x requests + slope x places for tokens.

    Places are counted from the client's records and the layout alone: tokens rounded up to
    blocks, padded to the longest row, or whole slots. Moments at which a prompt is being read are
    left out: how far it is, is an estimate. So are, where others are left, those at which a
    request fills its last block: the server may have given it the next one already. Where each
    request has as many places, slope and constant cannot be told apart, and the constant is
    left out; so it is where three moments or so alone would tell them apart.
    """
    rows: list[tuple[float, float, float, float]] = []
    clear: list[bool] = []
    theory: KvTheory | None = None
    for cell in cells:
        if cell.matched is None or cell.theory is None:
            continue
        theory = cell.theory
        for moment, item, used in zip(
            cell.matched.moments, cell.matched.expected, cell.matched.used, strict=True
        ):
            if item.places is not None and moment.settled:
                n = float(moment.held.size)
                rows.append((n, item.places, float(used), float(moment.held.mean())))
                clear.append(not _fills_a_block(moment, cell))
    if theory is None or not rows:
        return _absent(backend, mode, "kv_bytes", "no moment at which places could be counted")
    if len(rows) < MIN_MOMENTS:
        short = f"{counted(len(rows), 'moment')} with tokens held; {MIN_MOMENTS} are needed"
        return _absent(backend, mode, "kv_bytes", short)
    known = np.array(rows)
    requests, places, used_bytes, tokens = (known[clear] if sum(clear) >= MIN_MOMENTS else known).T
    each = places / requests
    alike = float(each.std()) <= _ALIKE * float(each.mean())
    law = None if alike else fit(np.stack([requests, places], axis=1), used_bytes)
    if law is None:
        alike = True
        law = fit(places[:, None], used_bytes)
    if law is None:
        return _absent(backend, mode, "kv_bytes", "no places were counted")
    return Fit(
        backend,
        mode,
        "kv_bytes",
        terms=(None if alike else law.terms[0], law.terms[-1]),
        n=int(requests.size),
        lengths=(float(tokens.min()), float(tokens.max())),
        rms=law.rms,
        expected_slope=theory.token_bytes,
        expected_constant=None if alike else theory.fixed_bytes,
    )


def _fills_a_block(moment: Moment, cell: RunCell) -> bool:
    """Whether the next token of some request needs a new block."""
    size = cell.info.block_size
    return size is not None and bool((moment.held % size == 0).any())


def _ttft(backend: str, mode: str, cells: Sequence[RunCell]) -> Fit:
    """a + b n + c n^2 over the prompt tokens n of each request."""

    def observed(cell: RunCell) -> tuple[Floats, Floats]:
        rows = cell.counted & cell.table.ok
        times = request_times(cell.table).ttft_s[rows]
        return prompt_tokens(cell.table)[rows].astype(np.float64), times

    return _latency(backend, mode, "ttft", cells, observed, degree=2)


def _tpot(backend: str, mode: str, cells: Sequence[RunCell]) -> Fit:
    """a + b n over the context n in the middle of each answer."""

    def observed(cell: RunCell) -> tuple[Floats, Floats]:
        rows = cell.counted & cell.table.ok
        table = cell.table
        context = prompt_tokens(table)[rows] + output_tokens(table)[rows] / 2.0
        return context, request_times(table).tpot_s[rows]

    return _latency(backend, mode, "tpot", cells, observed, degree=1)


def _latency(
    backend: str,
    mode: str,
    kind: FitKind,
    cells: Sequence[RunCell],
    observed: Callable[[RunCell], tuple[Floats, Floats]],
    degree: int,
) -> Fit:
    alone = [cell for cell in cells if cell.alone]
    if not alone:
        return _absent(backend, mode, kind, "no level with one request at a time")
    pairs = [observed(cell) for cell in alone]
    x, y = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    lengths = np.unique(x)
    least, spread = MIN_LENGTHS[kind], MIN_SPREAD[kind]
    if lengths.size < least or lengths[-1] < spread * lengths[0]:
        return _absent(
            backend,
            mode,
            kind,
            f"{counted(int(lengths.size), 'length')} at one request at a time; at least {least} "
            f"are needed, the longest {spread:g} times the shortest",
        )
    law = fit(polynomial(x, degree), y)
    if law is None:
        return _absent(backend, mode, kind, f"{y.size} requests are too few for {degree + 1} terms")
    return _fitted(backend, mode, kind, law, x)


def _cache_off(backend: str, mode: str, cells: Sequence[RunCell]) -> Fit:
    """Time of a token = a + b n over its context n: each token reads all before it again."""
    alone = [cell for cell in cells if cell.alone]
    if not alone:
        return _absent(backend, mode, "cache_off", "no level with one request at a time")
    contexts: list[Floats] = []
    gaps: list[Floats] = []
    requests: list[Ints] = []
    for cell in alone:
        n, gap, row = _gaps(cell.table, np.flatnonzero(cell.counted & cell.table.ok))
        contexts.append(n)
        gaps.append(gap)
        requests.append(row + sum(item.size for item in requests))
    x, y = np.concatenate(contexts), np.concatenate(gaps)
    if not x.size or float(x.max()) < CACHE_OFF_SPREAD * float(x.min()):
        return _absent(
            backend,
            mode,
            "cache_off",
            f"the contexts of its tokens differ by less than a factor of {CACHE_OFF_SPREAD:g}",
        )
    law = fit(polynomial(x, 1), y, np.concatenate(requests))
    if law is None:
        return _absent(backend, mode, "cache_off", "too few requests")
    return _fitted(backend, mode, "cache_off", law, x)


def _gaps(table: CellTable, rows: Ints) -> tuple[Floats, Floats, Ints]:
    """Context before, time of, and request of each token but the first, shape [tokens]."""
    prompts = prompt_tokens(table)
    contexts, times, owners = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
    for row in rows:
        start, stop = int(table.offsets[row]) + 1, int(table.offsets[row + 1])
        if stop <= start:
            continue
        before = np.cumsum(table.token_n[start - 1 : stop - 1])
        contexts.append(prompts[row] + before.astype(np.float64))
        times.append(table.token_us[start:stop] * 1e-6 / table.token_n[start:stop])
        owners.append(np.full(stop - start, row, dtype=np.int64))
    return np.concatenate(contexts), np.concatenate(times), np.concatenate(owners)


def _fitted(backend: str, mode: str, kind: FitKind, law: Fitted, x: Floats) -> Fit:
    return Fit(
        backend,
        mode,
        kind,
        terms=law.terms,
        n=int(x.size),
        lengths=(float(x.min()), float(x.max())),
        rms=law.rms,
    )


def _absent(backend: str, mode: str, kind: FitKind, why: str) -> Fit:
    return Fit(backend, mode, kind, absent=why)
