"""The sending side of one connection: bytes leave when ``send`` is called, not later.

uvloop's ``transport.write`` collects what is written in one round of the loop and sends it at
the round's end: with a thousand streams that is milliseconds after the time stamp. So the
link keeps a duplicate of the socket and sends by itself. Reading stays with the transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable

#: SO_LINGER on, 0 s: closing sends RST
_RESET = struct.pack("ii", 1, 0)


class Link:
    """A plain connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        theirs = transport.get_extra_info("socket")
        self._socket = socket.socket(fileno=socket.dup(theirs.fileno()))
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._raw_send = self._socket.send
        self._backlog = bytearray()
        self._closing = False
        #: nothing can be sent any more
        self.closed = False
        #: writes that the kernel did not take whole
        self.blocked = 0
        #: called when the backlog has been sent
        self.on_drained: Callable[[], None] | None = None

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return len(self._backlog)

    def received(self, data: bytes) -> bytes:
        """What the peer said with these bytes; ssl.SSLError where that cannot be read."""
        return data

    def send(self, data: bytes) -> None:
        """Send now; what the kernel does not take follows when it does."""
        if self.closed or self._closing:
            return
        if self._backlog:
            self.blocked += 1
            self._backlog += data
            return
        try:
            taken = self._raw_send(data)
        except BlockingIOError:
            taken = 0
        except OSError:
            self._broken()
            return
        if taken < len(data):
            self.blocked += 1
            self._backlog += memoryview(data)[taken:]
            self._loop.add_writer(self._socket, self._flush)

    def close(self) -> None:
        """Close once everything has been sent."""
        self._closing = True
        if not self._backlog and not self.closed:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._transport.close()

    def reset(self) -> None:
        """Close with RST, at once."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._broken()

    def lost(self) -> None:
        """The transport is closed: let go of the socket."""
        if self._backlog:
            self._loop.remove_writer(self._socket)
            self._backlog.clear()
        self.closed = True
        self._socket.close()

    def _broken(self) -> None:
        self.closed = True
        self._transport.abort()

    def _flush(self) -> None:
        try:
            taken = self._raw_send(self._backlog)
        except BlockingIOError:
            return
        except OSError:
            self._loop.remove_writer(self._socket)
            self._backlog.clear()
            self._broken()
            return
        del self._backlog[:taken]
        if self._backlog:
            return
        self._loop.remove_writer(self._socket)
        if self._closing:
            self.close()
        elif self.on_drained is not None:
            self.on_drained()


class TlsLink(Link):
    """A connection under TLS, encrypted in memory so that frames still leave at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
    ) -> None:
        super().__init__(loop, transport)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ready = False

    def received(self, data: bytes) -> bytes:
        """Decrypt; what TLS itself has to say is sent."""
        self._incoming.write(data)
        plain = bytearray()
        try:
            if not self._ready:
                self._tls.do_handshake()
                self._ready = True
            while piece := self._tls.read(65536):
                plain += piece
        except ssl.SSLWantReadError:
            pass
        finally:
            if self._outgoing.pending:
                super().send(self._outgoing.read())
        return bytes(plain)

    def send(self, data: bytes) -> None:
        """Encrypt and send."""
        if self.closed or self._closing:
            return
        self._tls.write(data)
        super().send(self._outgoing.read())

    def close(self) -> None:
        """Say goodbye, then close."""
        if self._ready and not self._closing and not self.closed:
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            if self._outgoing.pending:
                super().send(self._outgoing.read())
        super().close()
