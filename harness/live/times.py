"""The latencies of one request, in whole nanoseconds, and whether it met the limits. Pure.

The definitions are the report's (``harness.analysis.latency`` and ``throughput``), request
by request instead of by column; a test holds the two against each other.
"""

from __future__ import annotations

from typing import NamedTuple

from harness.live.buckets import NS_PER_US
from harness.records import RequestRecord
from harness.workload import Slo

#: How far a request's end may lie before its last token: the resolution of the stamps.
_STAMP_SLACK_S = 0.001


class RequestTimes(NamedTuple):
    """TTFT, E2E and TPOT of a success; TPOT is None for one token."""

    ttft_ns: int
    e2e_ns: int
    tpot_ns: int | None


def request_times(record: RequestRecord) -> RequestTimes | None:
    """None for a failure, an answer without tokens, or times that contradict each other."""
    if record.outcome != "ok" or not record.token_us or record.t_sent_s is None:
        return None
    first_us, last_us = record.token_us[0], sum(record.token_us)
    if first_us <= 0 or min(record.token_us) < 0:
        return None
    if record.t_sent_s + last_us * 1e-6 > record.t_end_s + _STAMP_SLACK_S:
        return None
    if record.t_sent_s < record.t_intended_s - _STAMP_SLACK_S:
        return None
    tokens = output_tokens(record)
    tpot_ns = None
    if tokens >= 2:
        tpot_ns = round((last_us - first_us) * NS_PER_US / (tokens - 1))
    return RequestTimes(first_us * NS_PER_US, last_us * NS_PER_US, tpot_ns)


def lateness_ns(record: RequestRecord) -> int | None:
    """How much later than intended it was sent; None when it never was."""
    if record.t_sent_s is None:
        return None
    return max(0, round((record.t_sent_s - record.t_intended_s) * 1e9))


def output_tokens(record: RequestRecord) -> int:
    """The best count there is: the server's, else that of the events."""
    if record.output_tokens:
        return record.output_tokens
    return len(record.token_us) if record.token_n is None else sum(record.token_n)


def prompt_tokens(record: RequestRecord) -> int:
    """As the server counted them, else as asked."""
    if record.prompt_tokens is not None:
        return record.prompt_tokens
    return record.asked_prompt_tokens


def meets(times: RequestTimes | None, slo: Slo) -> bool:
    """Whether a request met every limit; a failure misses, one token passes TPOT."""
    if times is None:
        return False
    return (
        _within(times.ttft_ns, slo.ttft_s)
        and _within(times.tpot_ns or 0, slo.tpot_s)
        and _within(times.e2e_ns, slo.e2e_s)
    )


def _within(value_ns: int, limit_s: float | None) -> bool:
    return limit_s is None or value_ns <= limit_s * 1e9
