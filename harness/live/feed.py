"""The load's end of the live metrics: opens the port, starts the server, sends snapshots.

Everything here is called in the measuring loop and never waits: a snapshot that the server
is too slow to take is left out, and the next one, being cumulative, makes up for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import subprocess
import sys
import time

from harness.errors import OptionError
from harness.live.snapshot import Message, RunEnd, RunFacts, encode
from harness.live.worker import LiveWorker
from harness.records import RequestRecord, RunEvent

DEFAULT_PORT = 9646
#: how often the load sends a snapshot
INTERVAL_S = 0.5
#: what the end of a run, and of the process, may wait for the server
_FLUSH_S = 1.0
_STOP_S = 5.0
_POLL_S = 0.01
#: a snapshot has about 750 bytes per level and backend; Linux gives 64 kB by itself
_PIPE_BYTES = 2**20
_KEY_VARIABLE = "OPENAI_API_KEY"

logger = logging.getLogger(__name__)


class LiveFeed:
    """The live metrics of one process, run after run; without a server it does nothing."""

    def __init__(self, server: LiveServer | None = None) -> None:
        self._server = server
        self._worker: LiveWorker | None = None
        self._run: str | None = None
        #: the last snapshot of each other process
        self._newest: dict[str, bytes] = {}

    @property
    def url(self) -> str | None:
        """Where the page is; None when there is none."""
        return self._server.url if self._server is not None else None

    def begin(self, facts: RunFacts, worker: str | None, wall_offset_s: float) -> None:
        """A run begins; all counts start at nothing.

        ``worker`` is this process's name; None when only others count, and ``forward`` is
        called with their snapshots.
        """
        if self._server is None:
            return
        self._run = facts.run
        if worker is not None:
            self._worker = LiveWorker(facts.run, worker, facts.slo, wall_offset_s)
        self._server.send(facts, wait_s=_FLUSH_S)

    def record(self, record: RequestRecord) -> None:
        """A request has ended and was read."""
        if self._worker is not None:
            self._worker.record(record)

    def event(self, event: RunEvent) -> None:
        """Something happened to the run."""
        if self._worker is not None:
            self._worker.event(event)

    def publish(self, in_flight: int) -> None:
        """Send what was counted; ``in_flight`` requests are being made now."""
        if self._server is not None and self._worker is not None and self._server.ready:
            self._server.send(self._worker.snapshot(in_flight))

    def forward(self, line: bytes, worker: str) -> None:
        """Pass on a snapshot of another process, as it encoded it.

        One that finds no room is left out; the newest of each worker is sent at the end.
        """
        if self._server is None or self._run is None:
            return
        self._newest[worker] = line
        if self._server.ready:
            self._server.send_line(line)

    def end(self) -> None:
        """The run is over; its last figures stay on the page."""
        if self._server is None or self._run is None:
            return
        if self._worker is not None:
            self._server.send(self._worker.snapshot(0), wait_s=_FLUSH_S)
        for line in self._newest.values():
            self._server.send_line(line, wait_s=_FLUSH_S)
        self._newest.clear()
        self._server.send(RunEnd(run=self._run), wait_s=_FLUSH_S)
        self._worker, self._run = None, None

    def close(self) -> None:
        """No more metrics; the port is free afterwards."""
        server, self._server = self._server, None
        self._worker = None
        if server is not None:
            server.stop()


class LiveServer:
    """The running server process and the pipe to it."""

    def __init__(self, listener: socket.socket) -> None:
        """Start it on a listening socket, which is its own from then on; raises OSError."""
        host, port = listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        for_server, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        _widen(self._pipe)
        #: bytes of a message that the pipe had no room for
        self._rest = b""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "harness.live.server", str(listener.fileno())],
                stdin=for_server,
                pass_fds=(listener.fileno(),),
                env={key: value for key, value in os.environ.items() if key != _KEY_VARIABLE},
                # Ctrl-C is for the load, which ends the server when it is done; a group and
                # no session, as for the scraper
                process_group=0,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(for_server)
            listener.close()

    @property
    def ready(self) -> bool:
        """Whether the message before has been sent whole."""
        self._flush()
        return not self._rest

    def send(self, message: Message, wait_s: float = 0.0) -> None:
        """Send a message; what finds no room within ``wait_s`` is kept for the next call."""
        self.send_line(encode(message), wait_s)

    def send_line(self, line: bytes, wait_s: float = 0.0) -> None:
        """Send a message that is already encoded, as ``send`` does."""
        self._rest += line
        give_up_s = time.monotonic() + wait_s
        self._flush()
        while self._rest and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
            self._flush()

    def stop(self) -> None:
        """End it; killed when it does not end by itself."""
        self._flush()
        os.close(self._pipe)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _flush(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._pipe, self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # it died; the load goes on without live figures
            self._rest = b""


def _widen(pipe: int) -> None:
    """Room for a snapshot of a long run at once, where the system allows it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def start(host: str, port: int | None, *, named: bool) -> LiveFeed:
    """Open the port and start the server; ``port`` None means no live metrics.

    A port that cannot be had is an OptionError when the user named it, else a warning.
    """
    if port is None:
        return LiveFeed()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        return _without(host, port, error, named=named)
    feed = LiveFeed(LiveServer(listener))
    logger.info("live metrics: %s", feed.url)
    return feed


def _without(host: str, port: int, error: OSError, *, named: bool) -> LiveFeed:
    """What to do when the port cannot be had."""
    if error.errno not in (errno.EADDRINUSE, errno.EACCES):
        words = str(error.strerror).partition(" (while")[0]
        raise OptionError(
            "--metrics-host", host, f"an address of this machine such as 127.0.0.1 ({words})"
        ) from error
    why = os.strerror(error.errno)
    if named:
        raise OptionError(
            "--metrics-port",
            port,
            f"a port that is free on {host} ({why}); 0 takes any, none goes without live metrics",
        ) from error
    logger.warning(
        "no live metrics: port %d on %s cannot be had (%s); name another by --metrics-port",
        port,
        host,
        why,
    )
    return LiveFeed()
