"""From device memory to the KV pool: what is left after weights and overhead.

pool = device memory x utilization - weights per rank - overhead. The overhead is what
lives outside weights and KV: the device's context, captured graphs, and the peak of
activations, which engines measure at start and a plan can only estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from harness.errors import OptionError, UsageError
from harness.kv.engine import Engine
from harness.kv.units import counted, exact, short_size

CONTEXT_BYTES = 2**29
GRAPHS_BYTES = 2**29


@dataclass(frozen=True)
class Budget:
    """A KV pool per rank, and how it came about."""

    pool_bytes: int
    #: each step as an equation with numbers and units
    steps: tuple[str, ...]
    weights_bytes: int | None = None
    overhead_bytes: int | None = None


def pool_from_device(
    *,
    device_bytes: int,
    utilization: float,
    weights_bytes: int,
    overhead_bytes: int,
    overhead_steps: tuple[str, ...],
    tp: int,
) -> Budget:
    """The pool of one rank; UsageError says how much is missing when nothing is left."""
    if not 0 < utilization <= 1:
        raise OptionError("--utilization", utilization, "a share above 0 and at most 1")
    # as decimals, so that 24 GiB x 0.92 is not off by a float's last bit
    usable = int(device_bytes * Decimal(str(utilization)))
    per_rank = -(-weights_bytes // tp)
    pool = usable - per_rank - overhead_bytes
    if pool <= 0:
        raise UsageError(
            f"--vram: does not fit: needs {exact(1 - pool)} more usable memory per device "
            f"({short_size(usable)} usable, {short_size(per_rank)} weights, "
            f"{short_size(overhead_bytes)} overhead)"
        )
    split = f"weights per rank = {exact(weights_bytes)} / {tp} = {exact(per_rank)}"
    steps = (
        f"usable memory = {exact(device_bytes)} x {utilization} = {exact(usable)}",
        *((split,) if tp > 1 else ()),
        *overhead_steps,
        f"KV pool{' of one rank' if tp > 1 else ''} = {usable:,} B - {per_rank:,} B - "
        f"{overhead_bytes:,} B = {exact(pool)}",
    )
    return Budget(pool, steps, per_rank, overhead_bytes)


def default_overhead(engine: Engine, hidden: int, widest: int, vocab: int) -> tuple[int, str]:
    """An estimate of what lives outside weights and KV on one rank, with its reasons.

    ``widest`` is the widest activation of a layer (the feed-forward's), per token.
    """
    # two residual copies and the gate and up halves of the feed-forward, 16 bit
    activations = engine.max_num_batched_tokens * (2 * hidden + 2 * widest // engine.tp) * 2
    # logits of every sequence in 32 bit, and the sampler's sorted copy
    logits = engine.max_num_seqs * vocab * 4 * 2
    fixed = 0 if engine.device == "cpu" else CONTEXT_BYTES + GRAPHS_BYTES
    total = fixed + activations + logits
    parts = []
    if engine.device != "cpu":
        parts = [
            f"{short_size(CONTEXT_BYTES)} device context",
            f"{short_size(GRAPHS_BYTES)} captured graphs",
        ]
    parts.append(
        f"{counted(engine.max_num_batched_tokens, 'token')} x (2 x {hidden:,} + 2 x {widest:,} / "
        f"{engine.tp}) x 2 B of activations"
    )
    parts.append(f"{engine.max_num_seqs:,} x {vocab:,} x 4 B x 2 of logits")
    return total, f"overhead (estimate) = {' + '.join(parts)} = {exact(total)}"
