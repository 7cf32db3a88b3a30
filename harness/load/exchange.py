"""From what one exchange gathered to its RequestRecord."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from harness.load.answer import Answer, error_text, read_answer, read_plain
from harness.load.clock import clock_step_s
from harness.load.dialect import Prompt
from harness.load.http1 import MAX_ERROR_BODY_BYTES, ResponseReader
from harness.load.sse import parse_events
from harness.load.timeline import Failure, Read, Timeline, arrivals, build_timeline, judge
from harness.records import CellKey, Outcome, RequestRecord

_MAX_ERROR_CHARS = 300
_OK = 200


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
    reads: list[Read] = field(default_factory=list)
    response: ResponseReader = field(default_factory=ResponseReader)
    failure: Failure | None = None

    @property
    def received(self) -> int:
        """Bytes of the response, its head included."""
        return sum(len(read.data) for read in self.reads)


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
        error=_shortened(error, secret),
        finish_reason=answer.finish_reason,
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
        outcome, text = _status_failure(response)
        return Answer(), outcome, text
    answer = read_answer(parse_events(response.pieces))
    if not response.is_event_stream and not answer.events:
        answer = read_plain(response.body) or answer
    if cancelled and failure is not None:
        return answer, failure.kind, failure.text
    outcome, error = judge(answer, ask.output_tokens, exact=exact, failure=failure)
    return answer, outcome, error


def _shortened(text: str | None, secret: str | None) -> str | None:
    """One short line without the API key."""
    if text is None:
        return None
    if secret:
        text = text.replace(secret, "***")
    text = " ".join(text.split())
    if len(text) > _MAX_ERROR_CHARS:
        text = text[: _MAX_ERROR_CHARS - 3] + "..."
    return text


def _status_failure(response: ResponseReader) -> tuple[Outcome, str]:
    """Class and words of a response that is not 200."""
    status = response.status or 0
    if 300 <= status < 400:
        place = response.headers.get(b"location", b"elsewhere").decode("latin-1")
        return (
            "http_error",
            f"HTTP {status}: redirected to {place}; give --backends the server that answers itself",
        )
    words = error_text(response.body[:MAX_ERROR_BODY_BYTES])
    kind: Outcome = "rejected" if status in (429, 503) else "http_error"
    return kind, f"HTTP {status}: {words}" if words else f"HTTP {status}"


def socket_failure(error: OSError, exchange: Exchange) -> Failure:
    """Class of a socket error: before anything was sent it is a failure to connect."""
    words = error.strerror or str(error) or type(error).__name__
    if exchange.t_sent_s is None:
        if isinstance(error, socket.gaierror):
            words = f"host name not found ({words})"
        return Failure("connect", words)
    return Failure("reset", words)
