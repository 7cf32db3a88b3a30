"""Listens until it is told to end: the event loop, the sockets, the signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import ssl
from collections.abc import Callable

import click
import uvloop

from harness.errors import OptionError, UsageError
from servers.simulated.connection import Connection
from servers.simulated.engine import Engine
from servers.simulated.frontend import Frontend
from servers.simulated.link import Link, TlsLink
from servers.simulated.settings import ServerSettings

#: pending connections: a load test opens a thousand at once
_BACKLOG = 4096

MakeEngine = Callable[[asyncio.AbstractEventLoop], Engine]


def serve(settings: ServerSettings, make_engine: MakeEngine) -> None:
    """Serve until SIGINT or SIGTERM; raises UsageError where it cannot listen."""
    context = _tls_context(settings)
    _raise_open_files()
    # what is alive now stays; the engine collects when nothing is due
    gc.freeze()
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, make_engine, context))


async def _serve(
    settings: ServerSettings, make_engine: MakeEngine, context: ssl.SSLContext | None
) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    engine = make_engine(loop)
    frontend = Frontend(loop, settings, engine)

    def make_link(transport: asyncio.Transport) -> Link:
        if context is None:
            return Link(loop, transport)
        return TlsLink(loop, transport, context)

    def make_connection() -> Connection:
        return Connection(frontend.handle, make_link, close=settings.wire.close)

    try:
        server = await loop.create_server(
            make_connection, settings.host, settings.port, backlog=_BACKLOG
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"--host {settings.host} --port {settings.port}: cannot listen there ({reason})"
        ) from error
    scheme = "http" if context is None else "https"
    click.echo(f"listening on {scheme}://{_address(server)}")
    await stopped.wait()
    server.close()
    engine.close()


def _address(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """The server's side of TLS; raises OptionError."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        # ssl.SSLError is one, too
        expected = f"a certificate and its key as PEM files ({error.strerror or error})"
        raise OptionError("--tls-cert", settings.tls_cert, expected) from error
    return context


def _raise_open_files() -> None:
    """As many connections as the system allows: each takes two descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
