"""Runs the service under uvicorn, and ends it cleanly on SIGINT and SIGTERM."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import torch
import transformers
import uvicorn

from harness.errors import OptionError
from harness.sizes import readable_size
from servers.contiguous.app import create_app
from servers.contiguous.ending import deadline, leave
from servers.contiguous.loading import load
from servers.contiguous.service import Service, build_service
from servers.contiguous.settings import Settings

#: idle connections stay open longer than any client of ours thinks between two requests
KEEP_ALIVE_S = 75
#: after a signal the engine ends all streams at once; this is for clients that do not read
SHUTDOWN_S = 5
#: the whole stop, whatever runs: a forward or a tokenizer that takes longer is not waited for
STOP_S = 10
_RESERVES = {
    "exact": "prompt + max_tokens",
    "pow2": "prompt + max_tokens rounded up to a power of two",
}

#: what the terminal says of a mode
MODE_LINES = {
    "off": "  off: no KV cache, every step computes every text anew; at most {max_num_seqs} "
    "requests; a prompt is computed in one piece",
    "quantized": "  quantized: HQQ, {kv_bits} bits, the newest {kv_residual_tokens} tokens at "
    "most at full precision; at most {max_num_seqs} requests",
    "sliding": "  sliding: layers keep the last tokens of their window (the smallest sees "
    "{sliding_window}); at most {max_num_seqs} requests",
}


class SignalledServer(uvicorn.Server):
    """Ends the running streams with an error frame before it closes their connections."""

    def __init__(
        self, config: uvicorn.Config, service: Service, on_stop: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._service = service
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: end in order; a second SIGINT: at once. The exit code is 0."""
        # only flags: a handler that took a lock could wait for the thread that it interrupts
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what runs, then as uvicorn does: wait for connections, stop the engine."""
        self._on_stop()
        self._service.engine.request_stop()
        self._service.offload.stop()
        await super().shutdown(sockets)


def make_server(service: Service, on_stop: Callable[[], object] = lambda: None) -> SignalledServer:
    """A uvicorn server over the service; listens on the sockets given to its ``run``.

    ``on_stop`` is called when the stop begins.
    """
    config = uvicorn.Config(
        create_app(service),
        http="httptools",
        lifespan="on",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return SignalledServer(config, service, on_stop)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, so that a taken port is known before a model is loaded; OptionError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise _address_error(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _address_error(host, port, error) from error
    return sock


def _address_error(host: str, port: int, error: OSError) -> OptionError:
    return OptionError("--host/--port", f"{host}:{port}", f"a free address ({error.strerror})")


def serve(settings: Settings) -> None:
    """Load, allocate, listen; returns after a signal."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    with bind(settings.host, settings.port) as sock:
        service = build_service(load(settings), settings)
        host, port = sock.getsockname()[:2]
        print(summary(service, f"http://{host}:{port}"), file=sys.stderr, flush=True)
        # what exists now lives as long as the process: the collector need not look at it
        gc.collect()
        gc.freeze()
        timer = deadline(STOP_S)
        make_server(service, timer.start).run(sockets=[sock])
        if service.offload.busy or service.engine.alive:
            # a thread that comes back while the interpreter is being taken down can crash it
            leave("a request's text or a forward is still being worked on")
        timer.cancel()


def summary(service: Service, url: str) -> str:
    """What a person at the terminal wants to know before the first request."""
    info, settings = service.info, service.settings
    lines = [f"contiguous server: {info['model']} on {info['device']}, {info['dtype']}, {url}"]
    if info["kv_budget_bytes"] is not None:
        budget, per_token = int(str(info["kv_budget_bytes"])), int(str(info["kv_bytes_per_token"]))
        lines.append(
            f"  KV: {per_token} B per token, budget {budget} B ({readable_size(budget)}) "
            f"= {budget // per_token} tokens"
        )
    if settings.cache in MODE_LINES:
        lines.append(MODE_LINES[settings.cache].format(**info))
    elif info["slots"] is not None:
        slot = int(str(info["max_model_len"])) * int(str(info["kv_bytes_per_token"]))
        lines.append(
            f"  static: {info['slots']} slots of {info['max_model_len']} tokens "
            f"({slot} B each), at most {info['max_num_seqs']} requests"
        )
    elif info["reserve"] is not None:
        lines.append(
            f"  static: one arena, {_RESERVES[settings.reserve]} per request, "
            f"at most {info['max_num_seqs']} requests"
        )
    else:
        lines.append(
            f"  dynamic: a padded batch, admitted on prompt + max_tokens (at most "
            f"{info['max_model_len']}), at most {info['max_num_seqs']} requests"
        )
    if info["changes_answers"] is not None:
        lines.append(f"  CHANGES ANSWERS: {info['changes_answers']}")
    chunk = f"{settings.prefill_chunk} prompt tokens at most"
    order = f"batching {settings.batching}; {chunk} between two decode steps"
    if settings.batching == "static":
        order = (
            f"batching static: up to {info['batch_size']} requests, left-padded, until all have "
            f"ended; {chunk} in a forward"
        )
    lines.append(f"  {order}; {settings.max_waiting} may wait, then 503")
    return "\n".join(lines)
