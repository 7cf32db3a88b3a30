"""From the options of the command line to a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from harness.errors import OptionError
from servers.simulated.app import serve
from servers.simulated.distributions import parse_duration, parse_sizes
from servers.simulated.engine import Engine
from servers.simulated.faults import parse_faults
from servers.simulated.paced import PacedEngine
from servers.simulated.settings import Pace, ServerSettings, Wire, parse_framing


def launch(options: Mapping[str, Any]) -> None:
    """Serve as asked; raises UsageError for what cannot be."""
    settings = server_settings(options)
    pace = Pace(
        ttft=parse_duration(options["ttft"], "--ttft"),
        itl=parse_duration(options["itl"], "--itl"),
        sizes=parse_sizes(options["tokens_per_chunk"], "--tokens-per-chunk"),
    )

    def engine(loop: asyncio.AbstractEventLoop) -> Engine:
        return PacedEngine(loop, pace, settings.seed)

    serve(settings, engine)


def server_settings(options: Mapping[str, Any]) -> ServerSettings:
    """What all modes share; raises OptionError."""
    if options["tls_key"] and not options["tls_cert"]:
        raise OptionError("--tls-key", options["tls_key"], "--tls-cert beside it")
    if not options["model"]:
        raise OptionError("--model", "", "a name")
    return ServerSettings(
        host=options["host"],
        port=options["port"],
        model=options["model"],
        max_model_len=options["max_model_len"],
        seed=options["seed"],
        wire=Wire(
            framing=parse_framing(options["framing"]),
            body=options["body"],
            close=options["connection"] == "close",
            continue_100=options["continue_100"],
        ),
        faults=parse_faults(options["fault"], options["seed"]),
        tls_cert=options["tls_cert"],
        tls_key=options["tls_key"],
    )
