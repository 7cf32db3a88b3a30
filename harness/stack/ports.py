"""Is a port free, and who has it when it is not."""

from __future__ import annotations

import contextlib
import socket

import psutil

from harness.errors import UsageError

HOST = "127.0.0.1"


def require_free(port: int, option: str) -> None:
    """Raises UsageError that names the port and, where the system tells, its holder."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # as servers do it: a port whose last connections are winding down is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise UsageError(f"port {port} needs more rights; name another with {option}") from None
        except OSError:
            raise UsageError(
                f"port {port} is taken{_holder(port)}; end that, or name another with {option}"
            ) from None


def _holder(port: int) -> str:
    # other users' sockets, and on some systems all sockets, are hidden from a plain user
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.pid
            if listening and connection.laddr[1:2] == (port,):
                # the program's name only: a command line may carry a key
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""
