"""The moments of a cell at which the client's records and the server's gauges can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.analysis.gauges import at_times
from harness.analysis.holdings import Holdings, Moment, Sample
from harness.analysis.memory import sample_times
from harness.analysis.pool import several_groups
from harness.analysis.reconcile_layout import Expected, layout_of
from harness.analysis.reconcile_theory import KvTheory
from harness.analysis.summary_types import Window
from harness.analysis.table import CellTable, Floats
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import BackendSeries

#: so many moments without a prompt being read speak for a level
MIN_SETTLED = 3
NO_THEORY = (
    "no bytes per token by theory: the model's config is not known (name it by --model-config)"
)


NO_CACHE = "this mode keeps no cache between two tokens: there is nothing to explain"


@dataclass(frozen=True)
class Matched:
    """Moments of one cell with what was expected and what was measured at each, shape [n]."""

    moments: tuple[Moment, ...]
    expected: tuple[Expected, ...]
    used: Floats
    samples: int

    @property
    def times(self) -> Floats:
        """Monotonic seconds."""
        return np.array([moment.t_s for moment in self.moments])


def match(
    table: CellTable,
    window: Window,
    series: BackendSeries | None,
    info: BackendInfo,
    theory: KvTheory | None,
) -> Matched | str:
    """The moments at which both sides can be compared, or why there are none."""
    if info.kind == "contiguous" and info.mode.startswith("off"):
        return NO_CACHE
    if theory is None:
        return NO_THEORY
    layout = layout_of(info, engine_theory(theory, series, info))
    if isinstance(layout, str):
        return layout
    if series is None or window.span is None:
        return "its window never opened" if window.span is None else "its metrics were not read"
    used = series.get(names.KV_USED_BYTES)
    times = sample_times(series, *window.span)
    if used is None or not times.size:
        return "the server stated no bytes in use inside the window"
    running = at_times(series, names.RUNNING, times)
    waiting = at_times(series, names.WAITING, times)
    # a window caps what the server counts
    tokens = None if theory.windowed else at_times(series, names.KV_TOKENS_HELD, times)
    bytes_used = at_times(series, names.KV_USED_BYTES, times)
    if bytes_used is None:
        return "the server stated no bytes in use inside the window"
    samples = [
        Sample(
            float(t_s),
            None if running is None else float(running[i]),
            None if waiting is None else float(waiting[i]),
            None if tokens is None else float(tokens[i]),
        )
        for i, t_s in enumerate(times)
    ]
    paged = info.kind == "vllm"
    chunk = info.max_num_batched_tokens if paged else info.prefill_chunk
    holdings = Holdings(table, chunk, vllm=paged)
    moments = best_moments(holdings.moments(samples))
    if not moments:
        return (
            f"at none of {times.size} samples did the server's count of requests and the client's "
            "agree while tokens were held"
        )
    places = np.searchsorted(times, [moment.t_s for moment in moments])
    return Matched(
        moments=moments,
        expected=tuple(layout(moment) for moment in moments),
        used=bytes_used[places],
        samples=int(times.size),
    )


def best_moments(found: Iterable[Moment]) -> tuple[Moment, ...]:
    """Moments at which something is held; those without a prompt being read, if there are enough.

    How far a prefill is, is an estimate: beside it no figure is better than a chunk.
    """
    holding = [moment for moment in found if moment.held.size]
    settled = [moment for moment in holding if moment.settled]
    return tuple(settled if len(settled) >= MIN_SETTLED else holding)


def engine_theory(theory: KvTheory, series: BackendSeries | None, info: BackendInfo) -> KvTheory:
    """The theory with the engine's own way of holding windows.

    A pool that states blocks x block size as its tokens is one group: its windows save nothing.
    """
    pool = series.pool if series is not None else None
    if pool is None or pool.size_tokens is None or not theory.windowed:
        return theory
    return theory if several_groups(pool, info.max_model_len) else theory.all_full()
