"""A plan's pool, and the requests that it holds: safe, and as vLLM's log states them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.errors import OptionError
from harness.kv.budget import Budget, default_overhead, pool_from_device
from harness.kv.capacity import Capacity
from harness.kv.explain import contiguous_steps, limited, paged_steps
from harness.kv.layouts import Costs
from harness.kv.lengths import QUANTILE, is_simulated, safe_requests, trials
from harness.kv.plan_types import PlanOptions
from harness.kv.spec import TextConfig
from harness.kv.units import gib
from harness.kv.weights import Parameters, weight_bits


def pool_of(
    text: TextConfig,
    options: PlanOptions,
    price: Costs,
    parameters: Parameters | None,
    warnings: list[str],
) -> Budget | None:
    """The pool of one rank: given, computed from the device's memory, or unknown."""
    if options.kv_memory_bytes is not None:
        step = f"KV pool = {options.kv_memory_bytes:,} B (given)"
        return Budget(options.kv_memory_bytes, (step,))
    if options.vram_bytes is None:
        return None
    engine = price.engine
    weights, working = options.weights_bytes, options.weights_source
    if weights is None:
        if parameters is None:
            raise OptionError("--weights", "auto", "a size: this config does not give it")
        bits = weight_bits(text, price.spec.dtype or "")
        weights = int(parameters.total * bits / 8)
        working = f"{parameters.working}; x {bits / 8:g} B"
        warnings.append("weights are computed from the config; --weights SIZE when you know them")
    overhead, reason = options.overhead_bytes, ""
    if overhead is None:
        sizes = parameters or Parameters(0, 0, 0, 0, 0, 0, 0, "")
        overhead, reason = default_overhead(engine, sizes.hidden, sizes.widest, sizes.vocab)
    else:
        reason = f"overhead = {gib(overhead)} (given)"
    budget = pool_from_device(
        device_bytes=options.vram_bytes,
        utilization=options.utilization,
        weights_bytes=weights,
        overhead_bytes=overhead,
        overhead_steps=(reason,),
        tp=engine.tp,
    )
    return replace(budget, steps=(f"weights: {working} = {weights:,} B", *budget.steps))


def safe_capacity(
    price: Costs, options: PlanOptions, pool: int | None, tokens: int, warnings: list[str]
) -> Capacity | None:
    """Requests that run to their last token together, for the layout in question."""
    if pool is None:
        return None
    if options.lengths is not None:
        fit, steps = _simulated(price, options, pool, warnings)
    elif options.layout == "paged":
        fit, steps = paged_steps(price, pool, tokens)
    else:
        fit, steps = contiguous_steps(price, options.layout, pool, tokens)
    asked = options.engine.max_num_seqs
    if asked is None and options.layout == "paged" and fit > price.engine.max_num_seqs:
        warnings.append(
            f"vLLM's default max_num_seqs {price.engine.max_num_seqs:,} runs fewer than the "
            f"{fit:,} requests that fit"
        )
    return limited(fit, steps, asked)


def _simulated(
    price: Costs, options: PlanOptions, pool: int, warnings: list[str]
) -> tuple[int, list[str]]:
    pairs = options.lengths or ()
    totals = [prompt + output for prompt, output in pairs]
    kept = [total for total in totals if total <= price.engine.max_model_len]
    if not kept:
        raise OptionError("--lengths", max(totals), f"up to {price.engine.max_model_len:,} tokens")
    if len(kept) < len(totals):
        warnings.append(
            f"{len(totals) - len(kept):,} of {len(totals):,} lengths exceed max_model_len and are "
            "left out: the server refuses them"
        )
    if options.layout == "paged":
        unit, budget = "blocks", max(0, pool // price.paged.block_bytes - 1)
        sizes = [price.paged.blocks_per_request(total, price.engine) for total in kept]
    else:
        unit, budget = "B", pool
        sizes = [price.reserved(options.layout, total) for total in kept]
    most = options.engine.max_num_seqs
    fit = safe_requests(sizes, budget, seed=options.seed, most=most)
    mean = sum(sizes) / len(sizes)
    limit = "" if most is None else f", up to max_num_seqs {most:,},"
    how = "draws (so many fit that their sum counts as normal, none is simulated)"
    if is_simulated(sizes, budget, most):
        how = f"{trials(sizes, budget, most):,} draws (seed {options.seed})"
    steps = []
    if options.layout == "paged":
        block = price.paged.block_bytes
        steps.append(f"usable blocks = floor({pool:,} B / {block:,} B) - 1 null block = {budget:,}")
    steps += [
        f"{len(sizes):,} lengths, mean {mean:,.1f} {unit} per request: {budget:,} {unit} / mean = "
        f"{budget / mean:,.1f} requests on average, which is not safe",
        f"safe = the most random requests{limit} whose sum stays within {budget:,} {unit} in "
        f"{QUANTILE:.0%} of {how} = {fit:,}",
    ]
    return fit, steps


@dataclass(frozen=True)
class AsLogged:
    """What vLLM's log would state."""

    blocks: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    steps: tuple[str, ...] = ()


def as_logged(price: Costs, pool: int | None, warnings: list[str]) -> AsLogged:
    """Pool tokens and maximum concurrency as vLLM's log words them: all blocks count."""
    if pool is None:
        return AsLogged()
    engine, paged = price.engine, price.paged
    blocks = pool // paged.block_bytes
    each = paged.startup_blocks(engine)
    if each > blocks - 1:
        warnings.append(
            f"vLLM would refuse to start: a request of {engine.max_model_len:,} tokens takes "
            f"{each:,} blocks, {max(0, blocks - 1):,} are usable; lower --max-model-len"
        )
    concurrency = blocks / each
    tokens = int(concurrency * engine.max_model_len)
    steps = (
        f"as vLLM's log counts: maximum concurrency = {blocks:,} blocks / {each:,} per request of "
        f"{engine.max_model_len:,} tokens = {concurrency:.2f}",
        f"as vLLM's log counts: KV cache size = {blocks:,} / {each:,} x {engine.max_model_len:,} "
        f"= {tokens:,} tokens",
    )
    return AsLogged(blocks, tokens, concurrency, steps)
