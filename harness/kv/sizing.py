"""A plan's pool, and the requests that it holds: safe, and as vLLM's log states them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.errors import OptionError
from harness.kv.budget import Budget, default_overhead, pool_from_device
from harness.kv.distribution import Lengths, kept_lengths, safe_steps, safe_with_copy
from harness.kv.engine import Engine
from harness.kv.explain import contiguous_steps, paged_steps
from harness.kv.layouts import Costs, LayoutName
from harness.kv.measured import measured_overhead, measured_pool
from harness.kv.plan_types import PlanOptions
from harness.kv.spec import TextConfig
from harness.kv.units import counted, exact
from harness.kv.weights import Parameters, weight_bits


def pool_of(
    text: TextConfig,
    options: PlanOptions,
    price: Costs,
    parameters: Parameters | str,
    warnings: list[str],
) -> Budget | None:
    """The pool of one rank: given, computed from the device's memory, or unknown.

    ``parameters`` may say instead why the config does not give them. Raises OptionError
    when their size is needed then, and UsageError when the weights do not fit.
    """
    if options.kv_memory_bytes is not None:
        step = f"KV pool = {options.kv_memory_bytes:,} B (given)"
        return Budget(options.kv_memory_bytes, (step,))
    if options.vram_bytes is None:
        if options.measured is None:
            return None
        return measured_pool(options.measured, price, options.layout, warnings)
    engine = price.engine
    weights, working = options.weights_bytes, options.weights_source
    if weights is None:
        if isinstance(parameters, str):
            raise OptionError(
                "--weights", "auto", f"a size: the config does not give it ({parameters})"
            )
        bits = weight_bits(text, price.spec.dtype or "")
        weights = int(parameters.total * bits / 8)
        working = f"{parameters.working}; x {bits / 8:g} B"
        warnings.append("weights are computed from the config; --weights SIZE when you know them")
    overhead, reason = options.overhead_bytes, ""
    if overhead is None and options.measured is not None:
        overhead, reason = measured_overhead(options.measured, price)
    elif overhead is None:
        sizes = Parameters(0, 0, 0, 0, 0, 0, 0, "") if isinstance(parameters, str) else parameters
        overhead, reason = default_overhead(engine, sizes.hidden, sizes.widest, sizes.vocab)
        warnings.append(
            "the overhead is an assumption, measured nowhere: --overhead SIZE when you know it, "
            "--from-run DIR for what a run measured"
        )
    else:
        reason = f"overhead = {exact(overhead)} (given)"
    budget = pool_from_device(
        device_bytes=options.vram_bytes,
        utilization=options.utilization,
        weights_bytes=weights,
        overhead_bytes=overhead,
        overhead_steps=(reason,),
        tp=engine.tp,
    )
    return replace(budget, steps=(f"weights: {working} = {weights:,} B", *budget.steps))


@dataclass(frozen=True)
class Safe:
    """Requests that run to their last token together, for the layout in question."""

    requests: int
    #: of ``dynamic``: those whose peak fits as well
    with_copy: int | None
    steps: tuple[str, ...]


def safe_capacity(
    price: Costs,
    layout: LayoutName,
    pool: int,
    of: int | Lengths,
    most: int | None,
    warnings: list[str],
) -> Safe:
    """For requests of as many tokens as ``of`` says, or drawn from its lengths.

    ``most`` is a max_num_seqs that the user set.
    """
    with_copy: int | None
    if isinstance(of, Lengths):
        fit, steps = safe_steps(of, price, layout, pool)
        with_copy = safe_with_copy(of, price, layout, pool)
    elif layout == "paged":
        (fit, steps), with_copy = paged_steps(price, pool, of), None
    else:
        fit, with_copy, steps = contiguous_steps(price, layout, pool, of)
    if most is None and layout == "paged" and fit > price.engine.max_num_seqs:
        warnings.append(
            f"vLLM's default max_num_seqs {price.engine.max_num_seqs:,} runs fewer than the "
            f"{fit:,} requests that fit"
        )
    if most is not None and fit > most:
        steps = [*steps, f"requests = min({fit:,}, max_num_seqs {most:,}) = {most:,}"]
        fit = most
    if with_copy is not None:
        with_copy = min(with_copy, fit)
    return Safe(fit, with_copy, tuple(steps))


def lengths_of(options: PlanOptions, engine: Engine, warnings: list[str]) -> Lengths | None:
    """The lengths in question; None when they were not given; raises OptionError."""
    if options.lengths is None:
        return None
    lengths = kept_lengths(
        options.lengths,
        engine.max_model_len,
        source=options.lengths_source,
        seed=options.seed,
        most=options.engine.max_num_seqs,
    )
    if lengths.left_out:
        all_of_them = counted(len(options.lengths), "length")
        one = lengths.left_out == 1
        warnings.append(
            f"{lengths.left_out:,} of {all_of_them} {'exceeds' if one else 'exceed'} max_model_len "
            f"{engine.max_model_len:,} and {'is' if one else 'are'} left out: the server refuses "
            f"{'it' if one else 'them'}"
        )
    return lengths


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
            f"vLLM would refuse to start: a request of {counted(engine.max_model_len, 'token')} "
            f"takes {counted(each, 'block')}, the pool has {max(0, blocks - 1):,} usable; lower "
            "--max-model-len"
        )
    concurrency = blocks / each
    tokens = int(concurrency * engine.max_model_len)
    steps = (
        f"as vLLM's log counts: maximum concurrency = {counted(blocks, 'block')} / {each:,} per "
        f"request of {counted(engine.max_model_len, 'token')} = {concurrency:.2f}",
        f"as vLLM's log counts: KV cache size = {blocks:,} / {each:,} x {engine.max_model_len:,} "
        f"= {tokens:,} tokens",
    )
    return AsLogged(blocks, tokens, concurrency, steps)
