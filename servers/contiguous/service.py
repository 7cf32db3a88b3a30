"""Puts one server together: budget, cache, admission, engine, metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import transformers

import harness
from harness.errors import OptionError
from harness.sizes import readable_size
from servers.contiguous.admission import Admission, AdmissionPolicy, DynamicPolicy, StaticPolicy
from servers.contiguous.batch import Runner
from servers.contiguous.cache import BatchCache
from servers.contiguous.cache_arena import ArenaBatchCache
from servers.contiguous.cache_dynamic import DynamicBatchCache
from servers.contiguous.cache_padded import ColumnPool, PaddedCache, growing
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
from servers.contiguous.reserving import ArenaPolicy, RectanglePolicy
from servers.contiguous.runner import ModelRunner, PaddedRunner
from servers.contiguous.selfcheck import (
    CHECK_ROWS,
    CHECK_TOKENS,
    check_model,
    check_padded,
    check_rows,
)
from servers.contiguous.settings import DEFAULT_CPU_KV_BUDGET_BYTES, Settings
from servers.contiguous.step_delay import step_delay
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
    _check(settings, layout, loaded)
    # without a cache there is nothing to budget, and no reason to ask how much is free
    budget = 0 if settings.cache == "off" else kv_budget_bytes(settings, loaded.device)
    policy = mode_policy(settings, layout, budget)
    if policy is None:
        policy = make_policy(settings, layout, budget, loaded.max_model_len)
    runner = _runner(settings, layout, loaded, policy)
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
        rest=step_delay(os.environ),
    )
    info = describe(settings, loaded, layout, policy, budget)
    metrics.add_gauges(engine.snapshot, info, cuda=loaded.device.type == "cuda")
    frontend = Frontend(
        loaded, settings.served_model_name, policy, DetokenizerFactory(loaded.tokenizer)
    )
    return Service(settings, frontend, engine, metrics, delivery, info)


def _runner(
    settings: Settings, layout: KvLayout, loaded: LoadedModel, policy: AdmissionPolicy
) -> Runner | PaddedRunner:
    made = mode_runner(settings, loaded.model, layout, loaded.device)
    if made is not None:
        return made
    plain = make_runner(policy, layout, loaded)
    if settings.compile and isinstance(plain.cache, StaticBatchCache):
        # imported here: torch's compiler takes a second to import
        from servers.contiguous.compiled import compiled_runner

        return compiled_runner(loaded.model, plain.cache, loaded.device)
    return plain


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
    slot = max_model_len * per_token
    reserve = settings.reserve if settings.cache == "static" else None
    if reserve == "max" and budget < slot:
        raise OptionError(
            "--kv-budget",
            budget,
            f"at least one slot: --max-model-len {max_model_len} tokens x {per_token} B = {slot} B",
        )
    if reserve is not None and budget < per_token:
        raise OptionError("--kv-budget", budget, f"at least one token: {per_token} B")
    if settings.batching == "static":
        return RectanglePolicy(budget, per_token, settings.seqs_limit, max_model_len, reserve)
    if reserve is None:
        return DynamicPolicy(budget, per_token, settings.seqs_limit)
    if reserve == "max":
        return StaticPolicy(budget // slot, settings.seqs_limit, slot)
    # more than all rows can reserve would never be used
    arena = min(budget // per_token, settings.seqs_limit * max_model_len)
    return ArenaPolicy(arena, per_token, settings.seqs_limit, max_model_len, reserve)


def make_runner(
    policy: AdmissionPolicy, layout: KvLayout, loaded: LoadedModel
) -> ModelRunner | PaddedRunner:
    """The cache of a policy, with the model; raises OptionError when it cannot be allocated."""
    try:
        if isinstance(policy, RectanglePolicy):
            padded = _padded_cache(policy, layout)
            return PaddedRunner(loaded.model, padded, loaded.device)
        cache = _cache(policy, layout, loaded.max_model_len)
        return ModelRunner(loaded.model, cache, loaded.device)
    except RuntimeError as error:
        raise OptionError(
            "--kv-budget", None, f"a size that fits into memory ({str(error).splitlines()[0]})"
        ) from error


def _cache(policy: AdmissionPolicy, layout: KvLayout, max_model_len: int) -> BatchCache:
    if isinstance(policy, StaticPolicy):
        return StaticBatchCache(layout, policy.slots, max_model_len)
    if isinstance(policy, ArenaPolicy):
        return ArenaBatchCache(layout, policy.arena_tokens)
    return DynamicBatchCache(layout)


def _padded_cache(policy: RectanglePolicy, layout: KvLayout) -> PaddedCache:
    storage = growing if policy.reserve is None else ColumnPool(layout, policy.pool_tokens)
    return PaddedCache(storage, policy.columns, policy.max_model_len, layout.device)


def _check(settings: Settings, layout: KvLayout, loaded: LoadedModel) -> None:
    """Check the model with a cache as it will serve, just large enough; ModelConfigError."""
    in_mode = check_runner(settings, loaded.model, layout, loaded.device)
    if in_mode is not None:
        own = layout if settings.sliding_window is not None else None
        check_rows(loaded.model, in_mode, loaded.device, own)
        return
    budget = CHECK_ROWS * CHECK_TOKENS * layout.bytes_per_token
    two = replace(settings, batch_size=None, max_num_seqs=CHECK_ROWS)
    if settings.batching == "none":
        two = replace(two, batching="continuous")
    policy = make_policy(two, layout, budget, CHECK_TOKENS)
    runner = make_runner(policy, layout, replace(loaded, max_model_len=CHECK_TOKENS))
    if isinstance(runner, PaddedRunner):
        check_padded(loaded.model, runner.cache, loaded.device)
    else:
        check_model(loaded.model, runner.cache, loaded.device)


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
        "reserve": settings.reserve if settings.cache == "static" else None,
        "batching": settings.batching,
        "batch_size": settings.seqs_limit if settings.batching == "static" else None,
        "dtype": str(layout.dtype).removeprefix("torch."),
        "device": str(loaded.device),
        "attn_implementation": loaded.model.config._attn_implementation,
        "attention": loaded.model.config._attn_implementation,
        "max_model_len": loaded.max_model_len,
        "threads": torch.get_num_threads(),
        "max_num_seqs": settings.seqs_limit,
        "max_waiting": settings.max_waiting,
        "prefill_chunk": settings.prefill_chunk,
        "slots": policy.slots if isinstance(policy, StaticPolicy | RectanglePolicy) else None,
        # without a cache a token costs nothing
        "kv_budget_bytes": None if settings.cache == "off" else budget,
        "kv_bytes_per_token": None if settings.cache == "off" else layout.bytes_per_token,
        "block_size": None,
        **mode_facts(settings, layout),
    }
