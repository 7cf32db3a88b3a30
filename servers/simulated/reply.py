"""One answer on its way: head, chunks, end, and the fault that was planned for it.

An engine calls ``begin`` once and ``chunk`` whenever the next tokens are due. The time stamp
of a chunk is taken just before its bytes (the last part of them) go to the kernel.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from servers.simulated.connection import CONTINUE, Connection, head
from servers.simulated.faults import MIDWAY, REFUSALS, Fault
from servers.simulated.frames import DONE, Events, Frames, error_body
from servers.simulated.settings import Wire
from servers.simulated.trickle import Part, Trickle
from servers.simulated.truth import RequestTruth, Truth

#: between the two parts of a split event
_SPLIT_GAP_S = 0.002
#: slow headers: so many parts, so far apart
_HEAD_PARTS, _HEAD_GAP_S = 20, 0.05
_GARBAGE_BYTES = 256
_SPOILT = {
    429: ("too many requests (a planned fault)", "rate_limit_exceeded"),
    503: ("overloaded (a planned fault)", "service_unavailable"),
}


@dataclass(frozen=True)
class Script:
    """What one answer will be, fixed before it begins."""

    #: tokens of each chunk
    sizes: Sequence[int]
    finish: str
    stream: bool
    fault: Fault | None
    #: of the random bytes of a fault
    seed: int


class Reply:
    """One answer to one request."""

    def __init__(
        self,
        connection: Connection,
        script: Script,
        frames: Frames,
        wire: Wire,
        record: tuple[Truth, RequestTruth],
        trickle: Trickle | None,
    ) -> None:
        """``trickle``: where parts of this answer are sent with pauses."""
        self._connection, self._link = connection, connection.link
        self._script, self._frames, self._wire = script, frames, wire
        self._events = Events(wire.framing)
        self._truth, self.entry = record
        self._trickle = trickle
        self._sizes, self._last = script.sizes, len(script.sizes)
        self._sent_chunks = 0
        self._sent_tokens = 0
        fault = script.fault
        midway = fault is not None and fault.kind in MIDWAY
        self._strikes_at = fault.after_chunks(self._last) if fault and midway else -1
        self._chunked = script.stream and wire.body == "chunked"
        self._fast = script.stream and self._chunked and wire.framing.plain and trickle is None
        self._blocked_before = connection.link.blocked
        self.over = False
        #: called once when the client has gone or a fault has ended the answer early
        self.on_over: Callable[[], None] | None = None

    @property
    def streams(self) -> bool:
        """Whether chunks are written as they come."""
        return self._script.stream

    def begin(self) -> bool:
        """Send what precedes the first token; False where there is no token to come."""
        self._connection.on_gone = self._gone
        if self._wire.continue_100:
            self._link.send(CONTINUE)
        kind = self._script.fault.kind if self._script.fault else None
        if kind in REFUSALS:
            self._refuse(kind, REFUSALS[kind])
            return False
        if kind == "empty":
            self._sizes, self._last = (), 0
        if self._script.stream:
            self._open()
        if not self._last:
            self._finish()
        return not self.over

    def chunk(self) -> bool:
        """Send the next tokens; False when there are no more, for whatever reason."""
        if self.over:
            return False
        size = self._sizes[self._sent_chunks]
        done = self._sent_tokens
        self._sent_chunks += 1
        self._sent_tokens += size
        last = self._sent_chunks == self._last
        if self._script.stream:
            if not done and self._frames.is_chat and not self._wire.framing.role_first:
                self._put(self._events.event(self._frames.role()))
            payload = self._frames.chunk(done, size, self._script.finish if last else None)
            if self._fast:
                data = b"%x\r\ndata: %b\n\n\r\n" % (len(payload) + 8, payload)
                entry = self.entry
                entry.tokens.append(size)
                entry.token_s.append(time.monotonic())
                self._link.send(data)
            else:
                self._put(self._events.event(payload), size)
        if self._sent_chunks == self._strikes_at:
            self._strike()
        elif last:
            self._finish()
        return not self.over

    # the parts of an answer

    def _open(self) -> None:
        """The head of a stream, and what comes with it."""
        fields = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
        if self._wire.body == "chunked":
            fields["transfer-encoding"] = "chunked"
        elif self._wire.body == "content-length":
            fields["content-length"] = str(self._length())
        keeps = self._connection.keeps_alive and self._wire.body != "close-delimited"
        fields["connection"] = "keep-alive" if keeps else "close"
        data = head(200, fields)
        if self._trickle is not None and self._faulty("slow-headers"):
            size = -(-len(data) // _HEAD_PARTS)
            for at in range(0, len(data), size):
                self._trickle.add(Part(data[at : at + size], _HEAD_GAP_S if at else 0.0))
        else:
            self._send(data)
        for event in self._first_events():
            self._put(event)

    def _first_events(self) -> list[bytes]:
        framing = self._wire.framing
        comment = [self._events.comment()] if framing.comments else []
        role = [self._events.event(self._frames.role())] if framing.role_first else []
        return comment + role

    def _end_events(self) -> list[bytes]:
        """Usage, where it was asked for, and [DONE]."""
        total = self._frames.total(self._sent_tokens)
        payloads = [DONE] if total is None else [total, DONE]
        return [self._events.event(payload) for payload in payloads]

    def _length(self) -> int:
        """Bytes of the whole body of a stream, worked out beforehand."""
        sizes, done, length = self._sizes, 0, sum(map(len, self._first_events()))
        if self._frames.is_chat and not self._wire.framing.role_first and sizes:
            length += len(self._events.event(self._frames.role()))
        for index, size in enumerate(sizes, start=1):
            finish = self._script.finish if index == len(sizes) else None
            length += len(self._events.event(self._frames.chunk(done, size, finish)))
            done += size
        total = self._frames.total(done)
        ends = [DONE] if total is None else [total, DONE]
        return length + sum(len(self._events.event(payload)) for payload in ends)

    def _put(self, event: bytes, tokens: int = 0) -> None:
        """Send one event of a stream, in parts where that is asked for."""
        if self._trickle is None:
            if tokens:
                self._stamp(tokens)
            self._link.send(self._wrapped(event))
            return
        parts = [self._wrapped(part) for part in self._events.parts(event)]
        for index, data in enumerate(parts):
            stamp = tokens if index == len(parts) - 1 else 0
            gap_s = _SPLIT_GAP_S if index else 0.0
            self._trickle.add(Part(data, gap_s, before=partial(self._stamp, stamp)))

    def _stamp(self, tokens: int) -> None:
        if tokens:
            self.entry.tokens.append(tokens)
            self.entry.token_s.append(time.monotonic())

    def _wrapped(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _send(self, data: bytes) -> None:
        """Send something that is no event, behind what is on its way."""
        if self._trickle is None:
            self._link.send(data)
        else:
            self._trickle.add(Part(data))

    def _finish(self) -> None:
        self.over = True
        if not self._script.stream:
            self._whole()
            return
        if self._trickle is None:
            end = b"".join(self._wrapped(event) for event in self._end_events())
            self._link.send(end + (b"0\r\n\r\n" if self._chunked else b""))
            self._ended()
            return
        for event in self._end_events():
            self._put(event)
        closing = b"0\r\n\r\n" if self._chunked else b""
        self._trickle.add(Part(closing, after=self._ended))

    def _whole(self) -> None:
        """The body of an answer that is not streamed."""
        if self._sent_tokens:
            self._stamp(self._sent_tokens)
        body = self._frames.whole(self._sent_tokens, self._script.finish)
        if self._wire.body == "close-delimited":
            self._link.send(head(200, {"content-type": "application/json", "connection": "close"}))
            self._link.send(body)
            self._ended(close=True)
        else:
            self._record("empty" if self._faulty("empty") else "ok")
            self._connection.respond(200, body)

    def _ended(self, *, close: bool = False) -> None:
        self._record("empty" if self._faulty("empty") else "ok")
        self._connection.done(close=close or self._wire.body == "close-delimited")

    # faults

    def _faulty(self, kind: str) -> bool:
        return self._script.fault is not None and self._script.fault.kind == kind

    def _refuse(self, kind: str | None, status: int) -> None:
        self.over = True
        self._record(str(kind))
        if status == 307:
            self._connection.respond(status, b"", location="/elsewhere/v1/completions")
        else:
            words, name = _SPOILT[status]
            body = error_body(words, name, status)
            self._connection.respond(status, body, retry_after="1")

    def _strike(self) -> None:
        """The planned fault, in the middle of the answer."""
        assert self._script.fault is not None  # noqa: S101 - for the type alone
        kind = self._script.fault.kind
        self.over = True
        self._connection.on_gone = None
        then = {
            "reset": self._link.reset,
            "stall": self._silent,
            "truncate": self._cut,
            "garbage": self._garbage,
            "in-band-error": self._error,
        }[kind]
        if self._trickle is None:
            self._strike_now(kind, then)
        else:
            self._trickle.add(Part(b"", after=lambda: self._strike_now(kind, then)))

    def _strike_now(self, kind: str, then: Callable[[], None]) -> None:
        self._record(kind)
        then()

    def _silent(self) -> None:
        """Nothing more comes, and the connection stays."""

    def _cut(self) -> None:
        if not self._script.stream:
            body = self._frames.whole(self._sent_tokens, self._script.finish)
            fields = {"content-type": "application/json", "content-length": str(len(body))}
            self._link.send(head(200, fields) + body[: len(body) // 2])
        self._link.close()

    def _garbage(self) -> None:
        draw = random.Random(self._script.seed)  # noqa: S311 - not for secrets
        self._link.send(draw.randbytes(_GARBAGE_BYTES))
        self._link.close()

    def _error(self) -> None:
        body = error_body("the engine failed (a planned fault)", "InternalServerError", 500)
        if not self._script.stream:
            self._connection.respond(200, body)
            return
        self._link.send(
            b"".join(self._wrapped(self._events.event(payload)) for payload in (body, DONE))
            + (b"0\r\n\r\n" if self._chunked else b"")
        )
        self._connection.done(close=not self._chunked)

    # the end

    def _gone(self) -> None:
        """The client has left."""
        self.over = True
        if self._trickle is not None:
            self._trickle.cancel()
        self._record("disconnected")

    def _record(self, outcome: str) -> None:
        self.entry.blocked = self._link.blocked - self._blocked_before
        self._truth.end(self.entry, outcome)
        callback, self.on_over = self.on_over, None
        if callback is not None:
            callback()
