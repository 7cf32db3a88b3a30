"""TTFT, TPOT, E2E and the gaps between token events.

Weighting: TTFT, TPOT and E2E are one number per request, so each request weighs alike.
ITL pools the gaps of all requests: a long answer weighs more than a short one. A stream
event may carry several tokens, so ITL is a gap between *events* and the mean tokens per
event stands beside it; TPOT divides by the tokens, never by the events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.latency_types import LatencyFigures
from harness.analysis.percentiles import distribution, failure_adjusted
from harness.analysis.table import CANCELLED, Bools, CellTable, Floats

#: How far the end of a request may lie before its last token: the resolution of the stamps.
_STAMP_SLACK_S = 0.001


@dataclass(frozen=True)
class RequestTimes:
    """Per request, shape [n], NaN where undefined (failed, no token, or one token: TPOT)."""

    ttft_s: Floats
    ttft_intended_s: Floats
    e2e_s: Floats
    tpot_s: Floats
    sane: Bools


def request_times(table: CellTable) -> RequestTimes:
    """The latencies of every request, counted or not."""
    sane = sane_timelines(table)
    usable = table.ok & sane & (table.events > 0)
    ttft = np.where(usable, table.first_s, np.nan)
    e2e = np.where(usable, table.last_s, np.nan)
    produced = np.where(table.output_tokens > 0, table.output_tokens, table.tokens_seen)
    many = usable & (produced >= 2)
    tpot = np.full(table.n, np.nan)
    np.divide(e2e - ttft, produced - 1, out=tpot, where=many)
    return RequestTimes(
        ttft_s=ttft,
        ttft_intended_s=ttft + (table.sent_s - table.intended_s),
        e2e_s=e2e,
        tpot_s=tpot,
        sane=sane,
    )


def sane_timelines(table: CellTable) -> Bools:
    """Which requests have times that do not contradict each other.

    With tokens: 0 < TTFT <= E2E, no gap is negative, the last token does not lie after the
    request's end, and the request was not sent before it was intended. The gaps add up to
    E2E - TTFT by construction, since all come from the same stamps.
    """
    some = table.events > 0
    negative = np.zeros(table.n, dtype=np.bool_)
    if table.token_us.size:
        negative[table.token_rows()[table.token_us < 0]] = True
    with np.errstate(invalid="ignore"):
        ordered = (table.first_s > 0) & (table.first_s <= table.last_s)
        ended = table.sent_s + table.last_s <= table.end_s + _STAMP_SLACK_S
        sent = ~(table.sent_s < table.intended_s - _STAMP_SLACK_S)
    return np.asarray(~some | (ordered & ended & sent & ~negative), dtype=np.bool_)


def measure_latency(table: CellTable, counted: Bools, times: RequestTimes) -> LatencyFigures:
    """The latency figures of the counted requests."""
    good = counted & table.ok
    failed = counted & ~table.ok & (table.outcome != CANCELLED)
    n_failed = int(failed.sum())
    ttft, tpot, e2e = (_known(v[good]) for v in (times.ttft_s, times.tpot_s, times.e2e_s))
    events = int(table.events[good].sum())
    with_tokens = good & (table.events > 0)
    return LatencyFigures(
        ttft_s=distribution(ttft),
        ttft_intended_s=distribution(_known(times.ttft_intended_s[good])),
        e2e_s=distribution(e2e),
        tpot_s=distribution(tpot),
        itl_s=distribution(event_gaps_s(table, good & times.sane)),
        first_content_s=distribution(_known(table.first_content_s[good])),
        ttft_adjusted_s=failure_adjusted(ttft, n_failed),
        tpot_adjusted_s=failure_adjusted(tpot, n_failed),
        e2e_adjusted_s=failure_adjusted(e2e, n_failed),
        tokens_per_event=_tokens_per_event(table, with_tokens),
        coalesced_share=float(table.coalesced[good].sum() / events) if events else None,
        first_coalesced_share=_share(table.first_coalesced, with_tokens),
        buffered_share=_share(table.buffered, good),
        kernel_clock_share=_share(table.kernel_clock, with_tokens),
        broken_timelines=int((good & ~times.sane).sum()),
    )


def event_gaps_s(table: CellTable, rows: Bools) -> Floats:
    """Gaps between token events of the given requests, pooled; the first token has none."""
    if not table.token_us.size:
        return np.empty(0)
    inner = np.ones(table.token_us.size, dtype=np.bool_)
    inner[table.offsets[:-1][table.events > 0]] = False
    inner &= np.repeat(rows, table.events)
    return np.asarray(table.token_us[inner] * 1e-6, dtype=np.float64)


def _tokens_per_event(table: CellTable, rows: Bools) -> float | None:
    events = int(table.events[rows].sum())
    if not events:
        return None
    produced = np.where(table.output_tokens > 0, table.output_tokens, table.tokens_seen)
    return float(produced[rows].sum() / events)


def _known(values: Floats) -> Floats:
    return np.asarray(values[~np.isnan(values)], dtype=np.float64)


def _share(flag: Bools, rows: Bools) -> float | None:
    return float(flag[rows].mean()) if rows.any() else None
