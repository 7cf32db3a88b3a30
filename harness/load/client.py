"""The streaming client: one request in, one RequestRecord out, whatever happens.

The hot path stores each read with its stamps and frames HTTP; events, JSON and the token
timeline are worked out after the stream has ended. A client belongs to one user and one
backend and keeps its connection between requests.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.load.clock import Clock, wall_offset_s
from harness.load.dialect import Dialect
from harness.load.exchange import (
    Ask,
    Ended,
    Exchange,
    answer_limit_bytes,
    socket_failure,
)
from harness.load.http1 import Endpoint, MalformedResponseError, RequestEncoder
from harness.load.stamped_socket import StampedSocket
from harness.load.timeline import Failure
from harness.load.watchdog import ExpiredError, Watchdog
from harness.records import FailureClass, RequestRecord

_CONNECT_TIMEOUT_S = 10.0
#: A server answers one of these when it does not know a field of the request.
_REFUSED_FIELD = (400, 422)


@dataclass(frozen=True)
class ClientOptions:
    """How to talk to a backend."""

    endpoint: Endpoint
    request_timeout_s: float
    idle_timeout_s: float
    api_key: str | None = field(default=None, repr=False)
    #: None makes a default context, which verifies the server
    tls: ssl.SSLContext | None = None


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
        """Make one request and hand its record to ``deliver``, exactly once."""
        records: list[RequestRecord] = []

        def ended(over: Ended) -> None:
            records.append(over.record())
            self.judge(records[0])
            deliver(records[0])

        self.request(ask, ended, on_sent)
        return records[0]

    def judge(self, record: RequestRecord) -> None:
        """Learn from a record that the server takes requests as they are."""
        if record.outcome == "ok":
            self._dialect.proven = True

    def request(
        self,
        ask: Ask,
        on_ended: Callable[[Ended], None],
        on_sent: Callable[[float], None] | None = None,
    ) -> Ended:
        """Make one request and call ``on_ended``, exactly once, as soon as it is over.

        Nothing of the answer is read yet: that is left to ``Ended.record``, so that a user
        can send its next request first. ``on_sent`` is called with the time just before
        the first byte is written. A greenlet killed here ends the request as cancelled and
        passes the kill on.
        """
        exchange = Exchange()
        try:
            while True:
                exchange = Exchange(
                    limit_bytes=answer_limit_bytes(ask.output_tokens),
                    leave_after=ask.leave_after,
                )
                self._attempt(ask, exchange, on_sent)
                if not self._was_refused(exchange):
                    break
        except BaseException:
            self.close()
            exchange.failure = Failure("cancelled", "the run ended first")
            on_ended(self._over(ask, exchange))
            raise
        over = self._over(ask, exchange)
        on_ended(over)
        return over

    def close(self) -> None:
        """Drop the kept connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _was_refused(self, exchange: Exchange) -> bool:
        """Whether to ask again with a plainer body."""
        return exchange.response.status in _REFUSED_FIELD and self._dialect.plainer()

    def _attempt(
        self, ask: Ask, exchange: Exchange, on_sent: Callable[[float], None] | None
    ) -> None:
        """One request on the wire; a stale kept connection is replaced once."""
        encoder = RequestEncoder(self._options.endpoint, self._dialect.path, self._options.api_key)
        request = encoder.encode(self._dialect.body(ask.prompt, ask.output_tokens))
        watchdog = Watchdog(
            self._clock,
            request_timeout_s=self._options.request_timeout_s,
            idle_timeout_s=self._options.idle_timeout_s,
            progress=exchange,
        )
        try:
            with watchdog:
                kept = self._connect(exchange)
                try:
                    self._converse(request, exchange, on_sent, kept=kept)
                except _StaleConnectionError:
                    self.close()
                    self._connect(exchange)
                    self._converse(request, exchange, on_sent, kept=False)
        except ExpiredError as error:
            unsent = exchange.t_sent_s is None
            kind: FailureClass = "connect" if unsent else "timeout"
            exchange.failure = exchange.failure or Failure(kind, str(error))
        except MalformedResponseError as error:
            exchange.failure = Failure("malformed", str(error))
        except OSError as error:
            exchange.failure = socket_failure(error, exchange)
        if exchange.failure is not None or not exchange.response.reusable:
            self.close()

    def _connect(self, exchange: Exchange) -> bool:
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
        exchange: Exchange,
        on_sent: Callable[[float], None] | None,
        *,
        kept: bool,
    ) -> None:
        """Send and read to the end of the response."""
        sock = self._socket
        assert sock is not None  # noqa: S101 - _connect made it
        exchange.offset_before_s = wall_offset_s(self._clock)
        exchange.t_sent_s = sent_s = self._clock.monotonic()

        def begun() -> None:
            if on_sent is not None:
                on_sent(sent_s)

        try:
            sock.send(request, begun)
            sock.receive(exchange.taker())
        except (ConnectionError, ssl.SSLError) as error:
            if kept and not exchange.reads:
                raise _StaleConnectionError from error
            raise
        if kept and not exchange.reads:
            raise _StaleConnectionError
        exchange.note_end()

    def _over(self, ask: Ask, exchange: Exchange) -> Ended:
        ended_s = self._clock.monotonic()
        exchange.frame_rest()
        exchange.offset_after_s = wall_offset_s(self._clock)
        return Ended(ask, exchange, ended_s, self._dialect.exact_length, self._options.api_key)
