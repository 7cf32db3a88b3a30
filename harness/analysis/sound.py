"""Records that no load can have written: a damaged disk or another hand made them.

One absurd number would shape every sum, so such a record is left out whole and counted.
Times that merely contradict each other stay in: ``latency.sane_timelines`` judges those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness.records import CellKey, RequestRecord

#: No request has more tokens, events or users than this.
MOST = 10**9
#: No time of a run lies further from its clock's zero (some 300 years).
MOST_S = 1e10
#: Arrivals in microseconds: 115 days, far beyond any time-out; their sums stay exact.
MOST_US = 10**13
#: Numbers of records; the table packs them beside their worker's.
_MOST_SEQ = 1 << 40


def without_earlier(
    records: Iterable[RequestRecord], since_s: Mapping[CellKey, float]
) -> Iterable[RequestRecord]:
    """The records without those of a cell from before it began anew."""
    if not since_s:
        # most runs were never interrupted, and a look at each of a million records costs
        return records
    return (r for r in records if r.t_intended_s >= since_s.get(r.cell, -MOST_S))


class SoundRecords:
    """The records that can be true, as a stream; counts the others in ``left_out``."""

    def __init__(self, records: Iterable[RequestRecord]) -> None:
        self._records = records
        self.left_out = 0

    def __iter__(self) -> Iterator[RequestRecord]:
        for record in self._records:
            if sound(record):
                yield record
            else:
                self.left_out += 1


def sound(record: RequestRecord) -> bool:
    """Whether a record can be true: its counts, its times, its arrays."""
    return _counts(record) and _times(record) and _events(record) and _success(record)


def _success(record: RequestRecord) -> bool:
    """A success was sent and brought tokens; without their times it would only thin out n."""
    return record.outcome != "ok" or (record.t_sent_s is not None and bool(record.token_us))


def _counts(record: RequestRecord) -> bool:
    """No count is negative or absurd, and no success has more tokens than were asked for.

    The load takes no answer for a success in which the server states more than was asked.
    """
    cell = record.cell
    counts = (
        record.output_tokens or 0,
        record.prompt_tokens or 0,
        record.cached_prompt_tokens or 0,
        record.asked_prompt_tokens,
        record.asked_output_tokens,
        record.user,
        record.ignored_events,
        record.shared_tokens or 0,
        record.conversation or 0,
        record.turn or 0,
        cell.prompt_tokens,
        cell.output_tokens,
        cell.repeat,
    )
    if min(counts) < 0 or max(counts) > MOST or not 0 <= record.seq < _MOST_SEQ:
        return False
    if not 0 < cell.level <= MOST:
        return False
    exact = record.outcome == "ok" and record.output_tokens_source == "usage"
    return not (exact and (record.output_tokens or 0) > record.asked_output_tokens)


def _times(record: RequestRecord) -> bool:
    sent_s, step_s = record.t_sent_s or 0.0, record.clock_step_s or 0.0
    # a plain loop: a generator costs more than all that it looks at
    for time_s in (record.t_intended_s, record.t_end_s, sent_s, step_s):
        if not -MOST_S <= time_s <= MOST_S:
            return False
    return True


def _events(record: RequestRecord) -> bool:
    """The arrays belong to the same events, and their sums stay within 64 bits."""
    arrivals, tokens, coalesced = record.token_us, record.token_n, record.coalesced
    if abs(record.first_content_us or 0) > MOST_US:
        return False
    if not arrivals:
        return not tokens and not coalesced
    if max(arrivals) > MOST_US or min(arrivals) < -MOST_US:
        return False
    if coalesced and not (min(coalesced) >= 0 and max(coalesced) < len(arrivals)):
        return False
    if tokens is None:
        return True
    return len(tokens) == len(arrivals) and min(tokens) >= 0 and max(tokens) <= MOST
