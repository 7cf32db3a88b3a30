"""Shows a request in Locust's statistics, for its web page and console.

For the eye only: Locust rounds and buckets its times. Every reported figure comes from
the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.records import Loop, RequestRecord, token_times_us


class StatsRow(NamedTuple):
    """One call of Locust's ``request`` event."""

    request_type: str
    name: str
    response_time_ms: float
    response_length: int
    #: why it failed; None for a success
    failure: str | None = None


def stats_rows(
    record: RequestRecord, loop: Loop = "closed", *, lengths: bool = False
) -> Iterator[StatsRow]:
    """TTFT, TPOT and E2E of a success; E2E alone, as a failure, else; none if cancelled.

    ``lengths``: the run has several, so they stand in the rows' names.
    """
    cell = record.cell
    level = f"c{cell.level:g}" if loop == "closed" else f"{cell.level:g}/s"
    shape = f" {cell.prompt_tokens}+{cell.output_tokens}" if lengths else ""
    name = f"{cell.backend}{shape} {level}"
    if record.outcome == "cancelled":
        return
    if record.outcome != "ok":
        started_s = record.t_sent_s if record.t_sent_s is not None else record.t_intended_s
        elapsed_ms = (record.t_end_s - started_s) * 1000
        failure = f"{record.outcome}: {record.error}"
        yield StatsRow("E2E", name, elapsed_ms, record.bytes_received, failure)
        return
    times_us = token_times_us(record)
    if not times_us:
        return
    first_ms, last_ms = times_us[0] / 1000, times_us[-1] / 1000
    yield StatsRow("TTFT", name, first_ms, 0)
    tokens = record.output_tokens
    if tokens is not None and tokens >= 2:
        yield StatsRow("TPOT", name, (last_ms - first_ms) / (tokens - 1), 0)
    yield StatsRow("E2E", name, last_ms, record.bytes_received)
