"""Why this p99: the requests of a level beyond p99 of TTFT or TPOT, each with its cause. Pure.

Beyond p99 are counted successes whose figure is larger than the percentile (pinned in
``harness.analysis.percentiles``). The ``MOST_EXPLAINED`` worst of them are explained, and the
``MOST_SHOWN`` worst are shown; how many there are stands beside. Rules: ``tail_causes``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from harness.analysis.client_samples import ClientSamples
from harness.analysis.latency import RequestTimes
from harness.analysis.percentiles import insufficient
from harness.analysis.summary_types import Window
from harness.analysis.table import Bools, CellTable, Floats, Ints
from harness.analysis.tail_causes import Explainer
from harness.analysis.tail_moment import Level
from harness.analysis.tail_types import Tail, TailFigure, TailOf, TailRow
from harness.manifest import BackendInfo
from harness.observe.series import BackendSeries

#: Of fewer requests the largest is no tail.
LEAST_REQUESTS = 20
MOST_EXPLAINED, MOST_SHOWN = 200, 10
#: Of the stamps: what differs by less is equal.
RESOLUTION_S = 1e-6


def explain_tail(
    info: BackendInfo,
    table: CellTable,
    window: Window,
    counted: Bools,
    times: RequestTimes,
    series: BackendSeries | None,
    samples: ClientSamples,
) -> Tail | None:
    """The tails of one cell; None with too few requests."""
    good = counted & table.ok
    if int(good.sum()) < LEAST_REQUESTS:
        return None
    origin_s = window.start_s if window.start_s is not None else float(table.reference_s.min())
    level = Level(info, table, times, series, samples)
    explainer = Explainer(level, np.flatnonzero(good), origin_s)
    figures = (
        _tail_of("TTFT", times.ttft_s, good, explainer),
        _tail_of("TPOT", times.tpot_s, good, explainer),
    )
    found = tuple(item for item in figures if item is not None)
    return Tail(found) if found else None


def _tail_of(
    figure: TailFigure, values: Floats, good: Bools, explainer: Explainer
) -> TailOf | None:
    rows = np.flatnonzero(good & ~np.isnan(values))
    if rows.size < LEAST_REQUESTS:
        return None
    own = values[rows]
    p50, p99 = (float(p) for p in np.percentile(own, (50, 99)))
    beyond = rows[own > p99 + RESOLUTION_S]
    worst = beyond[np.argsort(-values[beyond], kind="stable")][:MOST_EXPLAINED]
    found = _rows(figure, values, worst, p50, explainer)
    causes = Counter(row.cause for row in found)
    return TailOf(
        figure=figure,
        n=int(rows.size),
        p50_s=p50,
        p99_s=p99,
        beyond=int(beyond.size),
        explained=len(found),
        causes=tuple(sorted(causes.items(), key=lambda item: (-item[1], item[0]))),
        rows=tuple(found[:MOST_SHOWN]),
        thin=insufficient(int(rows.size), 99),
    )


def _rows(
    figure: TailFigure, values: Floats, worst: Ints, p50: float, explainer: Explainer
) -> Sequence[TailRow]:
    found = []
    for row in worst.tolist():
        late = explainer.late(row, figure, float(values[row]), p50)
        cause, evidence = explainer.explain(late)
        sent_s = float(explainer.table.sent_s[row])
        found.append(
            TailRow(
                figure=figure,
                user=int(explainer.table.user[row]),
                sent_s=sent_s,
                after_s=sent_s - explainer.origin_s,
                value_s=late.value_s,
                cause=cause,
                evidence=evidence,
            )
        )
    return found
