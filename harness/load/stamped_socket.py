"""A gevent TCP socket whose reads carry the kernel's receive time, with or without TLS.

Linux stamps each packet as it arrives (``SO_TIMESTAMPNS``, socket(7)) and ``recvmsg``
returns the stamp of the last packet that a read took from, so a client that is busy reads
late without measuring late. TLS goes through ``ssl.MemoryBIO``: the ciphertext is read
from the same socket, so the stamps survive. Where the option is missing, or a read has no
stamp (the kernel starts to stamp a moment after the first socket asks), ``stamp_s`` is None.
"""

from __future__ import annotations

import ssl
import struct
import sys
from types import TracebackType

import gevent.socket as gsocket

from harness.load.clock import Clock
from harness.load.timeline import Read

#: From asm-generic/socket.h; Python's socket module has no name for it. The control
#: message that carries the stamp has the same number and holds a struct timespec.
SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
_ANCILLARY_BYTES = 64
_READ_BYTES = 65536


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
        self._clock = clock
        started = clock.monotonic()
        self._sock = gsocket.create_connection((host, port), timeout=timeout_s)
        #: TCP set-up, name resolution included
        self.connect_s = clock.monotonic() - started
        #: TLS handshake; None without TLS
        self.tls_s: float | None = None
        self._tls: _Tls | None = None
        try:
            self._sock.setsockopt(gsocket.IPPROTO_TCP, gsocket.TCP_NODELAY, 1)
            #: whether reads can be expected to carry stamps
            self.stamps = request_stamps(self._sock)
            if tls is not None:
                started = clock.monotonic()
                self._tls = _Tls(self._sock, tls, host)
                self.tls_s = clock.monotonic() - started
        except BaseException:
            self._sock.close()
            raise
        # from here on the request's own watchdog limits the waiting
        self._sock.settimeout(None)

    def send(self, data: bytes) -> None:
        """Write all of ``data``."""
        self._sock.sendall(self._tls.encrypt(data) if self._tls else data)

    def read(self) -> Read:
        """Wait for bytes; ``data`` is empty at the end of the stream."""
        while True:
            data, stamp = self._read_packet()
            if self._tls is not None and data:
                data = self._tls.decrypt(data)
                if not data and not self._tls.ended:
                    continue
            return Read(self._clock.monotonic(), stamp, data)

    def is_stale(self) -> bool:
        """Whether an idle connection was closed, or sent something unasked."""
        self._sock.setblocking(False)
        try:
            self._sock.recv(1, gsocket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._sock.setblocking(True)
        return True

    def close(self) -> None:
        """Close at once; a second call does nothing."""
        self._sock.close()

    def _read_packet(self) -> tuple[bytes, float | None]:
        if not self.stamps:
            return self._sock.recv(_READ_BYTES), None
        data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, _ANCILLARY_BYTES)
        for level, kind, content in ancillary:
            if level == gsocket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack_from(content)
                return data, seconds + nanoseconds * 1e-9
        return data, None


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
                data = sock.recv(_READ_BYTES)
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
                piece = self._session.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.ended = True
                break
            plain.append(piece)
        return b"".join(plain)
