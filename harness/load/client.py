"""The streaming client: one request in, one RequestRecord out, whatever happens.

The hot path stores each read with its stamps and frames HTTP; events, JSON and the token
timeline are worked out after the stream has ended. A client belongs to one user and one
backend and keeps its connection between requests.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.load.answer import Answer, error_text, read_answer, read_plain
from harness.load.clock import Clock, clock_step_s, wall_offset_s
from harness.load.dialect import Dialect, Prompt
from harness.load.http1 import (
    MAX_ERROR_BODY_BYTES,
    Endpoint,
    MalformedResponseError,
    RequestEncoder,
    ResponseReader,
)
from harness.load.sse import parse_events
from harness.load.stamped_socket import StampedSocket
from harness.load.timeline import Failure, Read, Timeline, arrivals, build_timeline, judge
from harness.load.watchdog import ExpiredError, Watchdog
from harness.records import CellKey, Outcome, RequestRecord

#: After [DONE] only the end of the HTTP framing is missing.
_AFTER_DONE_S = 1.0
_CONNECT_TIMEOUT_S = 10.0
_MAX_ERROR_CHARS = 300
#: A server answers one of these when it does not know a field of the request.
_REFUSED_FIELD = (400, 422)


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


@dataclass(frozen=True)
class ClientOptions:
    """How to talk to a backend."""

    endpoint: Endpoint
    request_timeout_s: float
    idle_timeout_s: float
    api_key: str | None = field(default=None, repr=False)
    #: None makes a default context, which verifies the server
    tls: ssl.SSLContext | None = None


@dataclass
class _Exchange:
    """What one attempt gathered."""

    t_sent_s: float | None = None
    connect_s: float | None = None
    tls_s: float | None = None
    offset_before_s: float = 0.0
    reads: list[Read] = field(default_factory=list)
    response: ResponseReader = field(default_factory=ResponseReader)
    failure: Failure | None = None

    @property
    def received(self) -> int:
        return sum(len(read.data) for read in self.reads)


class _StaleConnectionError(Exception):
    """A kept connection was closed by the server before it answered anything."""


class StreamClient:
    """Makes requests of one user to one backend, one at a time."""

    def __init__(self, options: ClientOptions, dialect: Dialect, clock: Clock) -> None:
        self._options = options
        self._dialect = dialect
        self._clock = clock
        self._socket: StampedSocket | None = None
        self._tls = options.tls
        if options.endpoint.tls and self._tls is None:
            self._tls = ssl.create_default_context()

    def perform(
        self,
        ask: Ask,
        deliver: Callable[[RequestRecord], None],
        on_sent: Callable[[float], None] | None = None,
    ) -> RequestRecord:
        """Make one request and hand its record to ``deliver``, exactly once.

        ``on_sent`` is called with the time just before the first byte is written. A
        greenlet killed here records the request as cancelled and passes the kill on.
        """
        exchange = _Exchange()
        try:
            while True:
                exchange = _Exchange()
                self._attempt(ask, exchange, on_sent)
                if not self._was_refused(exchange):
                    break
        except BaseException:
            self.close()
            exchange.failure = Failure("cancelled", "the run ended first")
            deliver(self._record(ask, exchange))
            raise
        record = self._record(ask, exchange)
        if record.outcome == "ok":
            self._dialect.proven = True
        deliver(record)
        return record

    def close(self) -> None:
        """Drop the kept connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _was_refused(self, exchange: _Exchange) -> bool:
        """Whether to ask again with a plainer body."""
        return exchange.response.status in _REFUSED_FIELD and self._dialect.plainer()

    def _attempt(
        self, ask: Ask, exchange: _Exchange, on_sent: Callable[[float], None] | None
    ) -> None:
        """One request on the wire; a stale kept connection is replaced once."""
        encoder = RequestEncoder(self._options.endpoint, self._dialect.path, self._options.api_key)
        request = encoder.encode(self._dialect.body(ask.prompt, ask.output_tokens))
        watchdog = Watchdog(
            self._clock,
            request_timeout_s=self._options.request_timeout_s,
            idle_timeout_s=self._options.idle_timeout_s,
        )
        try:
            with watchdog:
                kept = self._connect(exchange)
                try:
                    self._converse(request, exchange, watchdog, on_sent, kept=kept)
                except _StaleConnectionError:
                    self.close()
                    self._connect(exchange)
                    self._converse(request, exchange, watchdog, on_sent, kept=False)
        except ExpiredError as error:
            unsent = exchange.t_sent_s is None
            exchange.failure = Failure("connect" if unsent else "timeout", str(error))
        except MalformedResponseError as error:
            exchange.failure = Failure("malformed", str(error))
        except OSError as error:
            exchange.failure = _socket_failure(error, exchange)
        if exchange.failure is not None or not exchange.response.reusable:
            self.close()

    def _connect(self, exchange: _Exchange) -> bool:
        """Have a connection; True when it is one kept from the last request."""
        if self._socket is not None and not self._socket.is_stale():
            return True
        self.close()
        endpoint = self._options.endpoint
        self._socket = StampedSocket(
            endpoint.host,
            endpoint.port,
            clock=self._clock,
            timeout_s=min(_CONNECT_TIMEOUT_S, self._options.request_timeout_s),
            tls=self._tls,
        )
        exchange.connect_s, exchange.tls_s = self._socket.connect_s, self._socket.tls_s
        return False

    def _converse(
        self,
        request: bytes,
        exchange: _Exchange,
        watchdog: Watchdog,
        on_sent: Callable[[float], None] | None,
        *,
        kept: bool,
    ) -> None:
        """Send and read to the end of the response."""
        sock = self._socket
        assert sock is not None  # noqa: S101 - _connect made it
        exchange.offset_before_s = wall_offset_s(self._clock)
        exchange.t_sent_s = self._clock.monotonic()
        if on_sent is not None:
            on_sent(exchange.t_sent_s)
        try:
            sock.send(request)
            self._read_response(sock, exchange, watchdog)
        except (ConnectionError, ssl.SSLError) as error:
            if kept and not exchange.reads:
                raise _StaleConnectionError from error
            raise
        if kept and not exchange.reads:
            raise _StaleConnectionError

    def _read_response(self, sock: StampedSocket, exchange: _Exchange, watchdog: Watchdog) -> None:
        reads, response = exchange.reads, exchange.response
        while not response.complete:
            read = sock.read()
            if not read.data:
                response.end()
                if not response.complete and reads:
                    exchange.failure = Failure("truncated", "closed before the response's end")
                elif not reads:
                    exchange.failure = Failure("reset", "closed without an answer")
                return
            watchdog.touch(read.t_s)
            reads.append(read)
            response.feed(len(reads) - 1, read.data)
            if b"[DONE]" in read.data and not response.complete:
                watchdog.end_within(_AFTER_DONE_S)

    def _record(self, ask: Ask, exchange: _Exchange) -> RequestRecord:
        ended_s = self._clock.monotonic()
        step_s = None
        if exchange.t_sent_s is not None:
            step_s = clock_step_s(exchange.offset_before_s, wall_offset_s(self._clock))
        answer, outcome, error = self._verdict(ask, exchange)
        sent_s = exchange.t_sent_s
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
            error=self._shortened(error),
            finish_reason=answer.finish_reason,
            done_seen=answer.done_seen,
            ignored_events=answer.ignored_events,
            buffered=timeline.buffered,
            prompt_hash=ask.prompt_hash,
            bytes_received=exchange.received,
        )

    def _verdict(self, ask: Ask, exchange: _Exchange) -> tuple[Answer, Outcome, str | None]:
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
        outcome, error = judge(
            answer, ask.output_tokens, exact=self._dialect.exact_length, failure=failure
        )
        return answer, outcome, error

    def _shortened(self, text: str | None) -> str | None:
        """One short line without the API key."""
        if text is None:
            return None
        if self._options.api_key:
            text = text.replace(self._options.api_key, "***")
        text = " ".join(text.split())
        if len(text) > _MAX_ERROR_CHARS:
            text = text[: _MAX_ERROR_CHARS - 3] + "..."
        return text


def _status_failure(response: ResponseReader) -> tuple[Outcome, str]:
    """Class and words of a response that is not 200."""
    status = response.status or 0
    if 300 <= status < 400:
        place = response.headers.get(b"location", b"elsewhere").decode("latin-1")
        return "http_error", f"HTTP {status}: redirected to {place}; give that URL to --backends"
    words = error_text(response.body[:MAX_ERROR_BODY_BYTES])
    kind: Outcome = "rejected" if status in (429, 503) else "http_error"
    return kind, f"HTTP {status}: {words}" if words else f"HTTP {status}"


def _socket_failure(error: OSError, exchange: _Exchange) -> Failure:
    """Class of a socket error: before anything was sent it is a failure to connect."""
    words = error.strerror or str(error) or type(error).__name__
    if exchange.t_sent_s is None:
        if isinstance(error, socket.gaierror):
            words = f"host name not found ({words})"
        return Failure("connect", words)
    return Failure("reset", words)
