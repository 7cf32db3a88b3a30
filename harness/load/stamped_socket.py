"""A gevent TCP socket whose reads carry the kernel's receive time, with or without TLS.

Linux stamps each packet as it arrives (``SO_TIMESTAMPNS``, socket(7)) and ``recvmsg``
returns the stamp of the last packet that a read took from, so a client that is busy reads
late without measuring late. TLS goes through ``ssl.MemoryBIO``: the ciphertext is read
from the same socket, so the stamps survive. Where the option is missing, or a read has no
stamp (the kernel starts to stamp a moment after the first socket asks), it is NO_STAMP.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable
from types import TracebackType

import gevent.socket as gsocket
from gevent.hub import Waiter
from gevent.monkey import get_original

from harness.load.clock import Clock
from harness.load.read_loop import watch_reads
from harness.load.reads import NO_STAMP

#: From asm-generic/socket.h; Python's socket module has no name for it. The control
#: message that carries the stamp has the same number and holds a struct timespec.
SO_TIMESTAMPNS = 35
_ANCILLARY_BYTES = 64
#: An ordinary event in its chunk. With the 33 bytes that Python puts before them it is the
#: largest block that Python's own allocator serves, which spares a tenth of a read's cost.
_READ_BYTES = 479
#: For an answer whose events are longer.
_LONG_READ_BYTES = 2048
#: So many reads of an answer may be longer (its head, events that waited together).
_FEW = 3
_REST_BYTES = 65536
#: What comes in some tens of seconds; then the other connections have their turn.
_MOST_AT_ONCE_BYTES = 2**20
#: Gets the monotonic time of a read, its stamp and its bytes; says whether they were the last.
Take = Callable[[float, bytes, bytes], bool]
_Ancillary = list[tuple[int, int, bytes]]


def request_stamps(sock: gsocket.socket) -> bool:
    """Ask the kernel for receive stamps; False where there are none."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(gsocket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class StampKeeper:
    """Keeps the kernel stamping while it is open.

    The kernel stamps packets only while some socket asks for it, and switches over with a
    delay. One idle socket held for the whole run spares every first read that delay.
    """

    def __init__(self) -> None:
        self._sock = gsocket.socket(gsocket.AF_INET, gsocket.SOCK_DGRAM)
        #: whether this system stamps at all
        self.supported = request_stamps(self._sock)

    def close(self) -> None:
        """Let go of the socket."""
        self._sock.close()

    def __enter__(self) -> StampKeeper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class StampedSocket:
    """One connection. Raises OSError (``ssl.SSLError`` included) from every method."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        clock: Clock,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect, within ``timeout_s`` for TCP and as much for TLS."""
        self._monotonic = clock.monotonic
        started = clock.monotonic()
        sock = gsocket.create_connection((host, port), timeout=timeout_s)
        #: TCP set-up, name resolution included
        self.connect_s = clock.monotonic() - started
        #: TLS handshake; None without TLS
        self.tls_s: float | None = None
        self._tls: _Tls | None = None
        try:
            sock.setsockopt(gsocket.IPPROTO_TCP, gsocket.TCP_NODELAY, 1)
            request_stamps(sock)
            if tls is not None:
                started = clock.monotonic()
                self._tls = _Tls(sock, tls, host)
                self.tls_s = clock.monotonic() - started
        except BaseException:
            sock.close()
            raise
        # from here on there is no waiting inside a call, and no timeout: the hub tells when
        # there is something to read, and the request's own watchdog limits the waiting
        self._sock: socket.socket = get_original("socket", "socket")(fileno=sock.detach())
        self._sock.setblocking(False)
        self._readable = watch_reads(self._sock.fileno(), clock)

    def send(self, data: bytes, begun: Callable[[], None]) -> None:
        """Write all of ``data``; ``begun`` is called when its first bytes are on their way."""
        rest = memoryview(self._tls.encrypt(data) if self._tls else data)
        try:
            rest = rest[self._send_some(rest) :]
        finally:
            begun()
        while rest:
            gsocket.wait_write(self._sock.fileno())
            rest = rest[self._send_some(rest) :]

    def receive(self, take: Take) -> None:
        """Hand each read to ``take`` until it says that it has all, or the stream ends.

        Reading is done by the hub, as soon as a packet is there; the calling greenlet sleeps
        through all of it. What ``take`` raises is raised here. A read that brings no plain
        text (half of a TLS record) is not handed over.
        """
        waiter: Waiter[None] = Waiter()
        self._readable.start(self._reader(take, waiter))
        try:
            waiter.get()
        finally:
            self._readable.stop()

    def is_stale(self) -> bool:
        """Whether an idle connection was closed, or sent something unasked."""
        try:
            self._sock.recv(1, gsocket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close at once; a second call does nothing."""
        if self._sock.fileno() >= 0:
            self._readable.stop()
            self._readable.close()
            self._sock.close()

    def _with_rest(
        self, data: bytes, ancillary: _Ancillary
    ) -> tuple[bytes, _Ancillary, OSError | None]:
        """What else lies there, as one read with the last stamp, and the error behind it.

        The kernel joins packets that wait, and keeps the stamp of the last: pieces of them
        must not pass for reads of their own. What came before a reset has come: the error,
        which the kernel tells only once, must not cover it.
        """
        pieces, size, fault = [data], len(data), None
        while size < _MOST_AT_ONCE_BYTES:
            try:
                data, found, _, _ = self._sock.recvmsg(_REST_BYTES, _ANCILLARY_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                fault = error
                break
            if not data:
                break
            pieces.append(data)
            size += len(data)
            ancillary = found or ancillary
        return b"".join(pieces), ancillary, fault

    def _send_some(self, data: memoryview) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    def _reader(self, take: Take, waiter: Waiter[None]) -> Callable[[], None]:
        """Makes one read and hands it over; wakes the waiter when no more is wanted or to be had.

        The hot path: once per packet. Names are looked up here, not there.
        """
        recvmsg, monotonic, tls = self._sock.recvmsg, self._monotonic, self._tls
        size, filled = _READ_BYTES, 0

        def readable() -> None:
            nonlocal size, filled
            fault = None
            try:
                data, ancillary, _, _ = recvmsg(size, _ANCILLARY_BYTES)
                if len(data) == size:
                    data, ancillary, fault = self._with_rest(data, ancillary)
                    filled += 1
                    size = _READ_BYTES if filled <= _FEW else _LONG_READ_BYTES
                over = not data
                if tls is not None and data:
                    data = tls.decrypt(data)
                    over = tls.ended
                if data:
                    # no other control message was asked for
                    over = take(monotonic(), ancillary[0][2] if ancillary else NO_STAMP, data)
            except BlockingIOError:
                return
            except Exception as error:
                waiter.throw(error)
            else:
                if over:
                    waiter.switch(None)
                elif fault is not None:
                    waiter.throw(fault)

        return readable


class _Tls:
    """A TLS session over memory buffers, fed with what the socket read."""

    def __init__(self, sock: gsocket.socket, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        #: the peer closed the session
        self.ended = False
        self._handshake(sock)

    def _handshake(self, sock: gsocket.socket) -> None:
        while True:
            try:
                self._session.do_handshake()
            except ssl.SSLWantReadError:
                sock.sendall(self._outgoing.read())
                data = sock.recv(_REST_BYTES)
                if not data:
                    raise ssl.SSLError("closed during the TLS handshake") from None
                self._incoming.write(data)
            except ssl.SSLError:
                # tell the peer why before giving up
                sock.sendall(self._outgoing.read())
                raise
            else:
                sock.sendall(self._outgoing.read())
                return

    def encrypt(self, data: bytes) -> bytes:
        self._session.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """The plain text that these bytes complete, which may be none."""
        self._incoming.write(data)
        plain: list[bytes] = []
        while True:
            try:
                piece = self._session.read(_REST_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.ended = True
                break
            plain.append(piece)
        return b"".join(plain)
