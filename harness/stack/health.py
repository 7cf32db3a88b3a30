"""Waiting until servers answer, noticing those that die instead."""

from __future__ import annotations

import http.client
import re
import signal
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from harness.errors import StackError
from harness.stack.process import Started, exit_code
from harness.stack.progress import Progress

TAIL_LINES = 25
_POLL_S = 0.25
_READ_BYTES = 2**20
#: Python's last line of a traceback, bare or behind a log line's prefix in brackets
_EXCEPTION = re.compile(r"(?:^|\] )((?:\w+\.)*[A-Z]\w*(?:Error|Exception): .+)")
#: how a command says why it refuses: ours, and argparse's with the program's name before it
_REFUSAL = re.compile(r"(?:[\w.-]+: )?error: (.+)")


@dataclass(frozen=True)
class Waiting:
    """A started server that is to become healthy."""

    name: str
    url: str
    log: Path
    started: Started


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether ``GET <url>/health`` gives 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def reachable(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a server answers at ``<url>/health``, over https where the URL says so.

    That page is not every server's, so 404 or 401 are answers; 5xx is a server that is ill.
    """
    parts = urlsplit(url)
    https = parts.scheme == "https"
    kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/health")
        return connection.getresponse().status < 500
    except ssl.SSLCertVerificationError:
        # it is there; whether it is trusted is the load's business
        return True
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_healthy(
    servers: Sequence[Waiting],
    progress: Progress,
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    probe: Callable[[str], bool] = answers,
    healthy: Sequence[Waiting] = (),
) -> None:
    """Return when all ``servers`` answer; raises StackError when one dies or time is over.

    Those that were ``healthy`` before must stay alive meanwhile. The log of the one that
    failed is shown before the error.
    """
    begin_s = clock()
    waiting = list(servers)
    while True:
        for server in (*healthy, *servers):
            _require_alive(server, progress)
        for server in [server for server in waiting if probe(server.url)]:
            waiting.remove(server)
            progress.note(f"{server.name} is healthy after {clock() - begin_s:.0f} s: {server.url}")
        if not waiting:
            return
        names = " and ".join(server.name for server in waiting)
        waited_s = clock() - begin_s
        if waited_s > timeout_s:
            _show_tail(waiting[0], progress)
            raise StackError(
                f"{names}: not healthy after {timeout_s:.0f} s; "
                f"log: {waiting[0].log}; --start-timeout gives more time"
            )
        progress.update(f"waiting for {names} to start ({waited_s:.0f} s)")
        sleep(_POLL_S)


def _require_alive(server: Waiting, progress: Progress) -> None:
    code = exit_code(server.started)
    if code is None:
        return
    _show_tail(server, progress)
    how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
    cause = first_error(server.log)
    why = f" ({cause})" if cause else ""
    raise StackError(f"{server.name} ended with {how} while starting{why}; log: {server.log}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _show_tail(server: Waiting, progress: Progress) -> None:
    lines = tail(server.log)
    progress.log_tail(f"the last {len(lines)} lines of {server.log}:", lines)


def tail(log: Path, count: int = TAIL_LINES) -> list[str]:
    """The last ``count`` non-empty lines of a log; none when it cannot be read."""
    return [line[:300] for line in _lines(log)][-count:]


def first_error(log: Path) -> str | None:
    """The line in which the server says why it ends, else the first exception of its log.

    Later exceptions tend to be consequences: vLLM's last lines only say that its engine
    failed; the cause stands pages above.
    """
    lines = _lines(log)
    said = [match for line in lines if (match := _REFUSAL.match(line))]
    raised = (match for line in lines if (match := _EXCEPTION.search(line)))
    first = said[0] if said else next(raised, None)
    return first[1][:300] if first else None


def _lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _READ_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    # a progress bar writes its steps over each other: only the last one counts
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return [line for line in lines if line]
