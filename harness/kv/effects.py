"""Options that were given but change no figure of a plan: said, so that nobody relies on them."""

from __future__ import annotations

from collections.abc import Iterator

from harness.kv.engine import EngineOptions
from harness.kv.plan_types import DEFAULT_UTILIZATION, PlanOptions
from harness.kv.spec import ModelSpec


def without_effect(spec: ModelSpec, options: PlanOptions) -> list[str]:
    """One warning for each option that was given in vain."""
    unused = [*_of_the_model(spec, options), *_of_the_engine(options.engine), *_of_memory(options)]
    return [f"{flag} has no effect: {reason}" for flag, reason in unused]


def _of_the_model(spec: ModelSpec, options: PlanOptions) -> Iterator[tuple[str, str]]:
    engine = options.engine
    kinds = {layer.kind for layer in spec.layers}
    if engine.state_dtype is not None and not spec.has_recurrent_states:
        yield "--mamba-ssm-cache-dtype", "the model keeps no recurrent states"
    if options.kv_dtype != "auto" and not kinds - {"state", "shared"}:
        yield "--kv-dtype", "the model keeps constant states only, which are not quantised"
    if engine.prefix_caching is not None and "state" not in kinds:
        flag = "--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"
        yield flag, "it decides how constant states are kept, and the model has none"
    if engine.hybrid_manager is not None and not kinds & {"sliding", "chunked"}:
        flag = "--hybrid-kv-cache-manager"
        if not engine.hybrid_manager:
            flag = "--disable-hybrid-kv-cache-manager"
        yield flag, "the model has no layers with a window"


def _of_the_engine(engine: EngineOptions) -> Iterator[tuple[str, str]]:
    if engine.async_scheduling and engine.device == "cpu":
        yield "--async-scheduling", "vLLM has none on the CPU"


def _of_memory(options: PlanOptions) -> Iterator[tuple[str, str]]:
    if options.vram_bytes is None:
        instead = "the KV pool is given" if options.kv_memory_bytes else "there is no --vram"
        if options.utilization != DEFAULT_UTILIZATION:
            yield "--utilization", instead
        if options.weights_bytes is not None:
            yield "--weights", instead
        if options.overhead_bytes is not None:
            yield "--overhead", instead
    if options.lengths is None and options.seed:
        yield "--seed", "there is no --lengths to simulate"
