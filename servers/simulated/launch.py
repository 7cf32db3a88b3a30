"""From the options of the command line to a running server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import OptionError
from harness.sizes import parse_size
from servers.simulated.app import MakeEngine, serve
from servers.simulated.distributions import parse_duration, parse_sizes
from servers.simulated.faults import parse_faults
from servers.simulated.model import EngineModel, StepCost
from servers.simulated.modelled import ModelledEngine
from servers.simulated.paced import PacedEngine
from servers.simulated.settings import Pace, ServerSettings, Wire, parse_framing


def launch(options: Mapping[str, Any]) -> None:
    """Serve as asked; raises UsageError for what cannot be."""
    settings = server_settings(options)
    serve(settings, _modelled(options) if options["mode"] == "modelled" else _paced(options))


def _paced(options: Mapping[str, Any]) -> MakeEngine:
    pace = Pace(
        ttft=parse_duration(options["ttft"], "--ttft"),
        itl=parse_duration(options["itl"], "--itl"),
        sizes=parse_sizes(options["tokens_per_chunk"], "--tokens-per-chunk"),
    )
    return lambda loop: PacedEngine(loop, pace, options["seed"])


def _modelled(options: Mapping[str, Any]) -> MakeEngine:
    model = engine_model(options)
    return lambda loop: ModelledEngine(loop, model, options["model"])


def engine_model(options: Mapping[str, Any]) -> EngineModel:
    """The model of an engine; raises OptionError."""

    def seconds(name: str) -> float:
        option = "--" + name.replace("_", "-")
        value = parse_duration(options[name], option).constant_s
        if value is None:
            raise OptionError(option, options[name], "one number of seconds: a model draws nothing")
        return value

    model = EngineModel(
        layout=options["layout"],
        cost=StepCost(
            base_s=seconds("step_base"),
            per_running_s=seconds("step_per_running"),
            per_context_s=seconds("step_per_context"),
            per_prefill_s=1.0 / options["prefill_rate"],
        ),
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        max_model_len=options["max_model_len"],
        num_blocks=options["num_blocks"],
        block_size=options["block_size"],
        kv_budget_bytes=parse_size(options["kv_budget"], "--kv-budget"),
        bytes_per_token=options["kv_bytes_per_token"],
    )
    if model.cost.base_s <= 0:
        raise OptionError("--step-base", options["step_base"], "a time above 0")
    if model.layout == "contiguous" and not model.slots:
        slot = model.max_model_len * model.bytes_per_token
        expected = f"at least one slot of --max-model-len tokens ({slot} bytes)"
        raise OptionError("--kv-budget", options["kv_budget"], expected)
    return model


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
