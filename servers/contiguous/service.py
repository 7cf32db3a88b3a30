"""Puts one server together: budget, cache, admission, engine, metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import transformers

import harness
from harness.errors import OptionError
from harness.sizes import readable_size
from servers.contiguous.admission import Admission, AdmissionPolicy, DynamicPolicy, StaticPolicy
from servers.contiguous.batch import Runner
from servers.contiguous.cache import BatchCache
from servers.contiguous.cache_dynamic import DynamicBatchCache
from servers.contiguous.cache_static import StaticBatchCache
from servers.contiguous.detokenize import DetokenizerFactory
from servers.contiguous.engine import Engine
from servers.contiguous.frontend import Frontend
from servers.contiguous.layout import KvLayout, probe_layout
from servers.contiguous.loading import LoadedModel
from servers.contiguous.mailbox import LoopDelivery
from servers.contiguous.metrics import ServerMetrics
from servers.contiguous.modes import (
    check_runner,
    mode_facts,
    mode_policy,
    mode_runner,
    windowed_layout,
)
from servers.contiguous.offload import Offload
from servers.contiguous.runner import ModelRunner
from servers.contiguous.selfcheck import CHECK_ROWS, CHECK_TOKENS, check_runs
from servers.contiguous.settings import DEFAULT_CPU_KV_BUDGET_BYTES, Settings
from servers.contiguous.temporaries import step_peaks

#: what a default budget leaves free on a GPU for activations, logits and fragmentation:
#: a tenth of the card, and at least 1 GiB
CUDA_RESERVE_SHARE = 0.1
CUDA_RESERVE_MIN_BYTES = 2**30


@dataclass(frozen=True)
class Service:
    """All that the HTTP side needs."""

    settings: Settings
    frontend: Frontend
    engine: Engine
    metrics: ServerMetrics
    delivery: LoopDelivery
    #: what /version says and contiguous_cache_info labels
    info: dict[str, object]
    offload: Offload = field(default_factory=Offload)


def build_service(
    loaded: LoadedModel, settings: Settings, clock: Callable[[], float] = time.monotonic
) -> Service:
    """Allocate the cache and wire everything; raises OptionError for a budget that is too small."""
    layout = windowed_layout(settings, probe_layout(loaded.model, loaded.device))
    _check(settings, loaded, layout)
    budget = kv_budget_bytes(settings, loaded.device)
    policy = mode_policy(settings, layout, budget)
    if policy is None:
        policy = make_policy(settings, layout, budget, loaded.max_model_len)
    runner = _make_runner(settings, loaded, layout, policy)
    metrics = ServerMetrics(settings.served_model_name)
    delivery = LoopDelivery()
    engine = Engine(
        runner,
        Admission(policy, settings.max_waiting),
        metrics.requests,
        deliver=delivery,
        clock=clock,
        prefill_chunk=settings.prefill_chunk,
        threads=settings.threads,
        peaks=step_peaks(loaded.device, clock),
    )
    info = describe(settings, loaded, layout, policy, budget)
    metrics.add_gauges(engine.snapshot, info, cuda=loaded.device.type == "cuda")
    frontend = Frontend(
        loaded, settings.served_model_name, policy, DetokenizerFactory(loaded.tokenizer)
    )
    return Service(settings, frontend, engine, metrics, delivery, info)


def _make_runner(
    settings: Settings, loaded: LoadedModel, layout: KvLayout, policy: AdmissionPolicy
) -> Runner:
    runner = mode_runner(settings, loaded.model, layout, loaded.device)
    if runner is not None:
        return runner
    cache = make_cache(policy, layout, loaded.max_model_len)
    if settings.compile and isinstance(cache, StaticBatchCache):
        # imported here: it is torch's compiler that takes a second to import
        from servers.contiguous.compiled import compiled_runner

        return compiled_runner(loaded.model, cache, loaded.device)
    return ModelRunner(loaded.model, cache, loaded.device)


def _check(settings: Settings, loaded: LoadedModel, layout: KvLayout) -> None:
    """The self-check, in the mode that will serve."""
    model, device = loaded.model, loaded.device
    runner = check_runner(settings, model, layout, device)
    if runner is None:
        runner = ModelRunner(model, _check_cache(settings, layout), device)
    own = layout if settings.sliding_window is not None else None
    check_runs(model, runner, device, own)


def kv_budget_bytes(settings: Settings, device: torch.device) -> int:
    """What was asked for; by default 256 MiB on a CPU, on a GPU what is free less a reserve."""
    if settings.kv_budget_bytes is not None:
        return settings.kv_budget_bytes
    if device.type != "cuda":
        return DEFAULT_CPU_KV_BUDGET_BYTES
    free, total = torch.cuda.mem_get_info(device)
    reserve = max(int(total * CUDA_RESERVE_SHARE), CUDA_RESERVE_MIN_BYTES)
    if free <= reserve:
        raise OptionError(
            "--kv-budget",
            None,
            f"a size: only {readable_size(free)} of the GPU's {readable_size(total)} are free, "
            f"and {readable_size(reserve)} stay in reserve for activations",
        )
    return int(free - reserve)


def make_policy(
    settings: Settings, layout: KvLayout, budget: int, max_model_len: int
) -> AdmissionPolicy:
    """The admission policy of the settings; raises OptionError when not one slot fits."""
    per_token = layout.bytes_per_token
    if settings.cache == "dynamic":
        return DynamicPolicy(budget, per_token, settings.seqs_limit)
    slot = max_model_len * per_token
    if budget < slot:
        raise OptionError(
            "--kv-budget",
            budget,
            f"at least one slot: --max-model-len {max_model_len} tokens x {per_token} B = {slot} B",
        )
    return StaticPolicy(budget // slot, settings.seqs_limit, slot)


def make_cache(policy: AdmissionPolicy, layout: KvLayout, max_model_len: int) -> BatchCache:
    """The cache of a policy; raises OptionError when the pool cannot be allocated."""
    if not isinstance(policy, StaticPolicy):
        return DynamicBatchCache(layout)
    try:
        return StaticBatchCache(layout, policy.slots, max_model_len)
    except RuntimeError as error:
        size = policy.slots * policy.slot_bytes
        raise OptionError(
            "--kv-budget", size, f"a pool that fits into memory ({str(error).splitlines()[0]})"
        ) from error


def _check_cache(settings: Settings, layout: KvLayout) -> BatchCache:
    """A cache of the policy that will serve, just large enough for the check."""
    if settings.cache == "static":
        return StaticBatchCache(layout, CHECK_ROWS, CHECK_TOKENS)
    return DynamicBatchCache(layout)


def describe(
    settings: Settings, loaded: LoadedModel, layout: KvLayout, policy: AdmissionPolicy, budget: int
) -> dict[str, object]:
    """The facts that clients and scrapers read; None where a mode has no such thing."""
    return {
        "version": harness.__version__,
        "engine": "contiguous",
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
        "model": settings.served_model_name,
        "mode": settings.cache,
        "batching": settings.batching,
        "dtype": str(layout.dtype).removeprefix("torch."),
        "device": str(loaded.device),
        "attn_implementation": loaded.model.config._attn_implementation,
        "attention": loaded.model.config._attn_implementation,
        "max_model_len": loaded.max_model_len,
        "threads": torch.get_num_threads(),
        "max_num_seqs": settings.seqs_limit,
        "max_waiting": settings.max_waiting,
        "prefill_chunk": settings.prefill_chunk,
        "slots": policy.slots if isinstance(policy, StaticPolicy) else None,
        # without a cache there is nothing to budget, and nothing that a token costs
        "kv_budget_bytes": None if settings.cache == "off" else budget,
        "kv_bytes_per_token": None if settings.cache == "off" else layout.bytes_per_token,
        "block_size": None,
        **mode_facts(settings, layout),
    }
