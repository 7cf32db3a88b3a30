"""From an answer and the times of its reads to the token timeline and the verdict. Pure.

Definitions are the design's: sent is just before the first byte is written, a token's
arrival is that of the read in which its event became complete, usage frames and [DONE]
never extend a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.load.answer import Answer
from harness.load.reads import Reads
from harness.records import ClockSource, FailureClass, Outcome

#: A mapped stamp this far after the client's own read cannot be true.
_FUTURE_LIMIT_S = 0.0005
#: More than this part of the time before the first token, and the rest at one instant:
#: something between buffers the stream.
_BUFFERED_RATIO = 0.95
_BUFFERED_MIN_EVENTS = 8
#: A frame rarely carries more tokens than this, speculative decoding included, so a
#: count of frames below asked / 8 is a short answer even without the server's count.
_MAX_TOKENS_PER_FRAME = 8
#: With these a server says that it gave up an answer: vLLM aborts, some gateways say error.
_BROKEN_OFF = frozenset({"abort", "error"})


class Arrivals(NamedTuple):
    """When each read's last packet arrived, monotonic seconds, never falling."""

    times_s: tuple[float, ...]
    stamped: tuple[bool, ...]


class Timeline(NamedTuple):
    """The token arrivals of one request, as the record stores them."""

    token_us: tuple[int, ...] = ()
    token_n: tuple[int, ...] | None = None
    coalesced: tuple[int, ...] = ()
    first_content_us: int | None = None
    clock: ClockSource = "monotonic"
    buffered: bool = False


class Failure(NamedTuple):
    """Why an exchange did not end as it should."""

    kind: FailureClass
    text: str


def arrivals(
    reads: Reads, t_sent_s: float, wall_offset_s: float, *, trust_stamps: bool
) -> Arrivals:
    """Map each read to its arrival.

    A stamp counts when it can be mapped (no clock step) and lies between the previous
    arrival and the client's own read; else that read's monotonic time stands in.
    """
    read_s = np.frombuffer(reads.times_s, dtype=np.float64)
    mapped = reads.stamps_s() - wall_offset_s
    # a stamp a hair early is the offset's sampling error, not another time
    arrived = np.minimum(mapped, read_s)
    times = np.maximum.accumulate(np.concatenate(([t_sent_s], arrived)))
    possible = (times[:-1] - _FUTURE_LIMIT_S <= mapped) & (mapped <= read_s + _FUTURE_LIMIT_S)
    if trust_stamps and possible.all():
        return Arrivals(tuple(times[1:].tolist()), (True,) * len(reads))
    return _doubtful_arrivals(read_s.tolist(), mapped.tolist(), t_sent_s, trust_stamps=trust_stamps)


def _doubtful_arrivals(
    read_s: Sequence[float], mapped_s: Sequence[float], t_sent_s: float, *, trust_stamps: bool
) -> Arrivals:
    """The same read by read, where not every stamp counts; a missing one is NaN."""
    times: list[float] = []
    stamped: list[bool] = []
    floor = t_sent_s
    for own, mapped in zip(read_s, mapped_s, strict=True):
        kernel = trust_stamps and floor - _FUTURE_LIMIT_S <= mapped <= own + _FUTURE_LIMIT_S
        floor = max(floor, min(mapped, own) if kernel else own)
        times.append(floor)
        stamped.append(kernel)
    return Arrivals(tuple(times), tuple(stamped))


def build_timeline(answer: Answer, arrived: Arrivals, t_sent_s: float) -> Timeline:
    """The arrivals of the token events of an answer, from ``t_sent_s``."""
    events = answer.events
    if not events:
        return Timeline(clock=_clock_source(arrived.stamped))
    reads = [event.read for event in events]
    counts = tuple(event.tokens for event in events)
    at = np.array(reads)
    absolute = np.rint((np.array(arrived.times_s)[at] - t_sent_s) * 1e6).astype(np.int64)
    return Timeline(
        token_us=tuple(np.diff(absolute, prepend=0).tolist()),
        token_n=None if max(counts) == 1 else counts,
        coalesced=tuple(np.flatnonzero(at[:-1] == at[1:]).tolist()),
        first_content_us=_first_content_us(answer, absolute.tolist()),
        clock=_clock_source([arrived.stamped[read] for read in reads]),
        buffered=_is_buffered(reads, absolute.tolist()),
    )


def judge(
    answer: Answer, asked_tokens: int, *, exact: bool, failure: Failure | None
) -> tuple[Outcome, str | None]:
    """The outcome of an exchange whose HTTP status was 200, and the words for it.

    ``exact`` says that exactly ``asked_tokens`` were demanded (``ignore_eos`` in force).
    ``failure`` is how the transport ended badly; it does not matter once the server had
    said that the answer is complete.
    """
    if answer.error is not None:
        return "in_band_error", answer.error
    if not answer.streamed:
        return "malformed", "the answer is one JSON object, not a stream"
    if answer.fault is not None:
        return "malformed", answer.fault
    if answer.finish_reason in _BROKEN_OFF:
        return "in_band_error", f"finish_reason {answer.finish_reason}"
    if answer.finished:
        return _judge_length(answer, asked_tokens, exact=exact)
    if failure is not None:
        return failure.kind, failure.text
    if answer.ignored_events and not answer.events:
        return _nothing_readable(answer)
    return "truncated", f"ended after {answer.tokens_seen} tokens without finish_reason or [DONE]"


def _nothing_readable(answer: Answer) -> tuple[Outcome, str]:
    return "malformed", f"no token, and {answer.ignored_events} events that are no JSON"


def _judge_length(answer: Answer, asked_tokens: int, *, exact: bool) -> tuple[Outcome, str | None]:
    got = answer.output_tokens or 0
    if not answer.events and answer.ignored_events:
        return _nothing_readable(answer)
    if got == 0:
        return "short_output", "no token"
    if not answer.events:
        # a total without a single token event has no times: it is no success
        return "short_output", f"no token arrived, though usage states {got}"
    least = asked_tokens if exact else 1
    if answer.output_tokens_source == "client_estimated" and answer.token_source == "content":  # noqa: S105 - no password
        least = least // _MAX_TOKENS_PER_FRAME
    if got < least:
        return "short_output", f"{got} of {asked_tokens} tokens"
    return "ok", None


def _clock_source(stamped: Sequence[bool]) -> ClockSource:
    if not any(stamped):
        return "monotonic"
    return "kernel" if all(stamped) else "mixed"


def _first_content_us(answer: Answer, absolute_us: Sequence[int]) -> int | None:
    """Arrival of the first visible text where reasoning came before it."""
    visible = next((i for i, event in enumerate(answer.events) if event.visible), None)
    if visible is None or not any(e.thought for e in answer.events[:visible]):
        return None
    return absolute_us[visible]


def _is_buffered(reads: Sequence[int], absolute_us: Sequence[int]) -> bool:
    """Whether most of many events arrived with one read at the very end."""
    if len(absolute_us) < _BUFFERED_MIN_EVENTS:
        return False
    if absolute_us[0] <= _BUFFERED_RATIO * absolute_us[-1]:
        return False
    return max(Counter(reads).values()) * 2 > len(reads)
