"""Rates inside the window: tokens that arrived in it over its length, never a projection."""

from __future__ import annotations

import numpy as np

from harness.analysis.checks_bursts import most_together
from harness.analysis.correlation import neighbours_alike
from harness.analysis.latency import RequestTimes
from harness.analysis.summary_types import ThroughputFigures, Window
from harness.analysis.table import CANCELLED, Bools, CellTable, Floats, Ints
from harness.analysis.windows import clip_steps, in_flight_steps
from harness.workload import Slo


def measure_throughput(
    table: CellTable, window: Window, counted: Bools, times: RequestTimes, slo: Slo
) -> ThroughputFigures:
    """The rates of one cell; each is None when the window never opened."""
    meets = meets_slo(table, times, slo)
    judged = counted & (table.outcome != CANCELLED)
    asked = slo != Slo()
    mean_flight, max_flight = _in_flight(table, window)
    inside = _ended_inside(table, window)
    return ThroughputFigures(
        requests_per_s=_rate(inside.sum(), window),
        prompt_tokens_per_s=_rate(_prompt_tokens_inside(table, window), window),
        output_tokens_per_s=_rate(_output_tokens_inside(table, window), window),
        goodput_rps=_rate((inside & meets).sum(), window) if asked else None,
        slo_attainment=_share(meets, judged) if asked else None,
        ttft_attainment=_attained(times.ttft_s, slo.ttft_s, table, judged),
        tpot_attainment=_attained(_tpot_or_pass(table, times), slo.tpot_s, table, judged),
        e2e_attainment=_attained(times.e2e_s, slo.e2e_s, table, judged),
        mean_in_flight=mean_flight,
        max_in_flight=max_flight,
        counted_prompt_tokens=int(prompt_tokens(table)[counted & table.ok].sum()),
        counted_output_tokens=int(output_tokens(table)[counted & table.ok].sum()),
        requests_ended=int(inside.sum()),
        ended_together=most_together(_last_s(table)[inside], times.e2e_s[inside]),
        slo_alike=_alike_in_order(table, meets, judged) if asked else None,
    )


def meets_slo(table: CellTable, times: RequestTimes, slo: Slo) -> Bools:
    """Which requests meet every limit; a failure misses, a one-token answer passes TPOT."""
    meets = table.ok.copy()
    for values, limit in (
        (times.ttft_s, slo.ttft_s),
        (_tpot_or_pass(table, times), slo.tpot_s),
        (times.e2e_s, slo.e2e_s),
    ):
        if limit is not None:
            meets &= _within(values, limit)
    return meets


def prompt_tokens(table: CellTable) -> Ints:
    """Prompt length per request as the server counted it, else as asked, shape [n]."""
    return np.where(table.prompt_tokens >= 0, table.prompt_tokens, table.asked_prompt)


def output_tokens(table: CellTable) -> Ints:
    """Output tokens per request by the best count there is, shape [n].

    A stated 0 beside tokens that were seen is no count.
    """
    return np.where(table.output_tokens > 0, table.output_tokens, table.tokens_seen)


def uncounted(table: CellTable) -> Bools:
    """Whose token count is the client's own: none was stated, or 0 beside tokens seen."""
    zero = (table.output_tokens == 0) & (table.tokens_seen > 0)
    return np.asarray(table.estimated | zero, dtype=np.bool_)


def _tpot_or_pass(table: CellTable, times: RequestTimes) -> Floats:
    single = table.ok & (output_tokens(table) == 1)
    return np.where(single & np.isnan(times.tpot_s), 0.0, times.tpot_s)


def _within(values: Floats, limit: float) -> Bools:
    with np.errstate(invalid="ignore"):
        return np.asarray(values <= limit, dtype=np.bool_)


def _attained(values: Floats, limit: float | None, table: CellTable, judged: Bools) -> float | None:
    if limit is None:
        return None
    return _share(_within(values, limit) & table.ok, judged)


def _share(flag: Bools, rows: Bools) -> float | None:
    return float(flag[rows].mean()) if rows.any() else None


def _alike_in_order(table: CellTable, meets: Bools, judged: Bools) -> float | None:
    order = np.argsort(table.reference_s[judged], kind="stable")
    return neighbours_alike(meets[judged][order])


def _rate(amount: float, window: Window) -> float | None:
    return None if window.length_s is None else float(amount) / window.length_s


def _inside(at_s: Floats, window: Window) -> Bools:
    if window.span is None:
        return np.zeros(at_s.size, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        return np.asarray((at_s > window.span[0]) & (at_s <= window.span[1]), dtype=np.bool_)


def _ended_inside(table: CellTable, window: Window) -> Bools:
    return table.ok & _inside(_last_s(table), window)


def _last_s(table: CellTable) -> Floats:
    """When each request's last token came, else when it was over; shape [n]."""
    return np.where(np.isnan(table.last_s), table.end_s, table.sent_s + table.last_s)


def _prompt_tokens_inside(table: CellTable, window: Window) -> int:
    prefilled = table.ok & _inside(table.sent_s + table.first_s, window)
    return int(prompt_tokens(table)[prefilled].sum())


def _output_tokens_inside(table: CellTable, window: Window) -> float:
    if window.span is None or not table.token_us.size:
        return 0.0
    arrived = _inside(table.token_times_s(), window)
    arrived &= np.repeat(table.ok, table.events)
    return float(table.token_weights()[arrived].sum())


def _in_flight(table: CellTable, window: Window) -> tuple[float | None, int | None]:
    """Mean and largest number of requests in flight inside the window, as measured."""
    if window.span is None:
        return None, None
    sent = ~np.isnan(table.sent_s)
    steps = in_flight_steps(table.sent_s[sent], table.end_s[sent])
    start, end = window.span
    clipped, values = clip_steps(*steps, start, end)
    held = np.diff(np.append(clipped, end))
    # steps of no length are a user's end and next start at one instant, no extra request
    return float((held * values).sum() / (end - start)), int(values[held > 0].max())
