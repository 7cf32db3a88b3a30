"""From what one exchange gathered to its RequestRecord."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace

from harness.load.answer import Answer, read_answer, read_plain
from harness.load.clock import clock_step_s
from harness.load.dialect import Prompt
from harness.load.failure_words import (
    MAX_REASON_CHARS,
    no_stream,
    packed,
    shortened_words,
    status_failure,
)
from harness.load.http1 import MalformedResponseError, ResponseReader
from harness.load.reads import Reads
from harness.load.sse import parse_columns
from harness.load.stamped_socket import Take
from harness.load.timeline import Failure, Timeline, arrivals, build_timeline, judge
from harness.records import CellKey, Outcome, RequestRecord

_OK = 200
#: Status line and headers; servers and proxies themselves refuse a quarter of this.
MAX_HEAD_BYTES = 131_072
#: What an answer may hold: an event with everything a server adds to one token is below
#: 16 KiB, below the floor lies everything that is merely odd, and at the ceiling even the
#: longest answer has ordinary events.
_MIN_ANSWER_LIMIT_BYTES = 64 * 2**20
_MAX_ANSWER_LIMIT_BYTES = 2**30
_LIMIT_BYTES_PER_TOKEN = 16_384
#: The end of a chunked response, trailers included; servers end events with LF LF CR LF.
_LAST = b"\r\n\r\n"
#: Few and small enough that a wrong framing, or one without end, is noticed soon.
_FRAMED_AT_ONCE = 64
_SMALL_BYTES = 4096


@dataclass(frozen=True)
class Ask:
    """One request to make."""

    worker: str
    seq: int
    cell: CellKey
    user: int
    t_intended_s: float
    prompt: Prompt
    prompt_hash: str
    prompt_tokens: int
    output_tokens: int


@dataclass
class Exchange:
    """What one attempt gathered."""

    t_sent_s: float | None = None
    connect_s: float | None = None
    tls_s: float | None = None
    #: wall minus monotonic time before it was sent, and after it ended
    offset_before_s: float = 0.0
    offset_after_s: float = 0.0
    reads: Reads = field(default_factory=Reads)
    response: ResponseReader = field(default_factory=ResponseReader)
    failure: Failure | None = None
    #: the most bytes that are kept of the response
    limit_bytes: int = _MIN_ANSWER_LIMIT_BYTES
    #: bytes of the response, its head included
    received: int = 0
    #: the last reads, not framed yet
    waiting: list[bytes] = field(default_factory=list)

    def taker(self) -> Take:
        """Takes the reads of the response: the hot path, once per packet.

        HTTP is framed some reads at a time, which costs half of framing each at once: a
        chunked response ends with CR LF CR LF, so no read of another end can be its last.
        Raises MalformedResponseError. Names are looked up here, not there.
        """
        note_time, note_stamp = self.reads.times_s.append, self.reads.stamps.extend
        waiting, keep, response = self.waiting, self.waiting.append, self.response

        def take(t_s: float, stamp: bytes, data: bytes) -> bool:
            note_time(t_s)
            note_stamp(stamp)
            keep(data)
            if (
                response.can_wait
                and len(waiting) < _FRAMED_AT_ONCE
                and len(_LAST) <= len(data) < _SMALL_BYTES
                and not data.endswith(_LAST)
            ):
                return False
            self.frame()
            return response.complete

        return take

    def frame(self) -> None:
        """Frame the reads that wait for it; raises MalformedResponseError."""
        waiting, self.waiting[:] = list(self.waiting), []
        first = len(self.reads) - len(waiting)
        self.received += sum(map(len, waiting))
        for number, data in enumerate(waiting, first):
            self.response.feed(number, data)
        if self.received > MAX_HEAD_BYTES:
            self.check_size(self.received)

    def frame_rest(self) -> None:
        """As ``frame``, where a failure is known already or becomes the exchange's."""
        try:
            self.frame()
        except MalformedResponseError as error:
            self.failure = self.failure or Failure("malformed", str(error))

    def note_end(self) -> None:
        """No more reads come; where the response is not complete that is a failure.

        Raises MalformedResponseError.
        """
        self.frame()
        self.response.end()
        if self.response.complete:
            return
        if self.reads:
            self.failure = Failure("truncated", "closed before the response's end")
        else:
            self.failure = Failure("reset", "closed without an answer")

    @property
    def last_read_s(self) -> float | None:
        """When something was received last."""
        return self.reads.times_s[-1] if self.reads else None

    @property
    def said_all(self) -> bool:
        """Whether only the end of the HTTP framing is missing, or it cannot come any more."""
        self.frame_rest()
        return self.failure is not None or self.response.ends_with_done

    def check_size(self, received: int) -> None:
        """Raise MalformedResponseError when a response is too long to be one.

        Its bytes are let go: many users may meet such a server at once.
        """
        if self.response.status is None:
            words = f"no end of the headers within {MAX_HEAD_BYTES // 1024} KiB"
        elif received > self.limit_bytes:
            words = f"the answer is longer than {self.limit_bytes // 2**20} MiB"
        else:
            return
        # the first read stays: when it came, and what an error body says
        self.reads.keep_first()
        self.response.forget_pieces(0 if self.response.status == _OK else 1)
        raise MalformedResponseError(words)


def answer_limit_bytes(output_tokens: int) -> int:
    """The most bytes of an answer of so many tokens that are kept, its framing included."""
    wanted = output_tokens * _LIMIT_BYTES_PER_TOKEN
    return min(max(wanted, _MIN_ANSWER_LIMIT_BYTES), _MAX_ANSWER_LIMIT_BYTES)


@dataclass(frozen=True)
class Ended:
    """A request that is over; its record is worked out when there is time for it."""

    ask: Ask
    exchange: Exchange
    t_end_s: float
    #: the server was told to ignore the end-of-sequence token
    exact: bool
    secret: str | None = field(repr=False)

    @property
    def answered(self) -> bool:
        """Whether a whole response of status 200 came; what it says is not read yet."""
        return self.exchange.failure is None and self.exchange.response.status == _OK

    def record(self) -> RequestRecord:
        """Read what came: events, JSON, tokens, times."""
        return make_record(
            self.ask, self.exchange, self.t_end_s, exact=self.exact, secret=self.secret
        )


def make_record(
    ask: Ask, exchange: Exchange, ended_s: float, *, exact: bool, secret: str | None
) -> RequestRecord:
    """The record of a request whose last attempt was ``exchange``.

    ``exact``: the server was told to ignore the end-of-sequence token. ``secret`` is kept
    out of the error's words.
    """
    sent_s = exchange.t_sent_s
    step_s = None
    if sent_s is not None:
        step_s = clock_step_s(exchange.offset_before_s, exchange.offset_after_s)
    answer, outcome, error = _verdict(ask, exchange, exact=exact)
    timeline, headers_s = Timeline(), None
    if sent_s is not None and exchange.reads:
        arrived = arrivals(
            exchange.reads, sent_s, exchange.offset_before_s, trust_stamps=step_s is None
        )
        timeline = build_timeline(answer, arrived, sent_s)
        headers_s = arrived.times_s[0] - sent_s
    return RequestRecord(
        worker=ask.worker,
        seq=ask.seq,
        cell=ask.cell,
        user=ask.user,
        outcome=outcome,
        t_intended_s=ask.t_intended_s,
        t_sent_s=sent_s,
        t_end_s=ended_s,
        connect_s=exchange.connect_s,
        tls_s=exchange.tls_s,
        headers_s=headers_s,
        clock=timeline.clock,
        clock_step_s=step_s,
        token_us=timeline.token_us,
        token_n=timeline.token_n,
        coalesced=timeline.coalesced,
        token_source=answer.token_source,
        first_content_us=timeline.first_content_us,
        asked_prompt_tokens=ask.prompt_tokens,
        asked_output_tokens=ask.output_tokens,
        prompt_tokens=answer.prompt_tokens,
        cached_prompt_tokens=answer.cached_prompt_tokens,
        output_tokens=answer.output_tokens,
        output_tokens_source=answer.output_tokens_source,
        http_status=exchange.response.status,
        error=shortened_words(error, secret),
        finish_reason=shortened_words(answer.finish_reason, secret, MAX_REASON_CHARS),
        done_seen=answer.done_seen,
        ignored_events=answer.ignored_events,
        buffered=timeline.buffered,
        prompt_hash=ask.prompt_hash,
        bytes_received=exchange.received,
    )


def _verdict(ask: Ask, exchange: Exchange, *, exact: bool) -> tuple[Answer, Outcome, str | None]:
    """The answer, its outcome, and the words for a failure."""
    response, failure = exchange.response, exchange.failure
    cancelled = failure is not None and failure.kind == "cancelled"
    if response.status is not None and response.status != 200 and not cancelled:
        outcome, text = status_failure(response)
        return Answer(), outcome, text
    answer = read_answer(parse_columns(response.piece_reads, response.pieces))
    if not response.is_event_stream and not answer.events:
        answer = read_plain(response.body) or replace(answer, fault=_no_stream(exchange, answer))
    answer = answer.held_against(ask.output_tokens)
    if cancelled and failure is not None:
        return answer, failure.kind, failure.text
    if response.encoding is not None:
        return answer, "malformed", f"{packed(response)}, though identity was asked for"
    outcome, error = judge(answer, ask.output_tokens, exact=exact, failure=failure)
    return answer, outcome, error


def _no_stream(exchange: Exchange, answer: Answer) -> str | None:
    """Words for a whole body that is neither a stream nor JSON; None where there is an event."""
    events = answer.done_seen or answer.ignored_events or answer.error is not None
    if events or exchange.failure is not None:
        return answer.fault
    return answer.fault or no_stream(exchange.response)


def socket_failure(error: OSError, exchange: Exchange) -> Failure:
    """Class of a socket error: before anything was sent it is a failure to connect."""
    words = error.strerror or str(error) or type(error).__name__
    if exchange.t_sent_s is None:
        if isinstance(error, socket.gaierror):
            words = f"host name not found ({words})"
        return Failure("connect", words)
    return Failure("reset", words)
