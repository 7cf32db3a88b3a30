"""What a run measured on its hardware, for a plan of other lengths.

A KV pool is what is left of a device at one max_model_len: an engine profiles its activations,
graphs and temporary buffers for that. So a pool and an overhead are taken over at the same
max_model_len alone; for another nothing here tells them.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import OptionError
from harness.kv.budget import Budget
from harness.kv.layouts import Costs, LayoutName
from harness.kv.units import counted, exact, short_size

FLAG = "--from-run"
#: bytes per token that differ by more than this are another cache, not a rounding
_ALIKE = 0.01


@dataclass(frozen=True)
class Measured:
    """One backend of a run; None where the run does not tell."""

    run: str
    backend: str
    max_model_len: int | None
    #: as the server states it
    pool_bytes: int | None = None
    #: of a paged pool
    num_blocks: int | None = None
    block_size: int | None = None
    #: bytes per token place with its 95 % interval, fitted over the run
    token_bytes: float | None = None
    token_bytes_low: float | None = None
    token_bytes_high: float | None = None
    #: bytes on the device that are neither KV nor weights, at most over the run's levels
    overhead_bytes: int | None = None
    #: what they are, in words with their bytes; or why they are not known
    overhead: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Where a figure comes from, for the reader."""
        return f"{self.backend} of run {self.run}"

    def lines(self) -> tuple[str, ...]:
        """What was measured, one fact a line."""
        lines = [f"of {self.source}, at max_model_len {_known(self.max_model_len)}"]
        if self.pool_bytes is not None:
            blocks = ""
            if self.num_blocks is not None and self.block_size is not None:
                blocks = f" in {counted(self.num_blocks, 'block')} of {self.block_size:,} tokens"
            lines.append(f"KV pool, as the server states it: {exact(self.pool_bytes)}{blocks}")
        if self.token_bytes is not None:
            lines.append(
                f"bytes per token place, fitted: {self.token_bytes:,.1f} B (95 % interval "
                f"{self.token_bytes_low or 0:,.1f} to {self.token_bytes_high or 0:,.1f})"
            )
        total = "overhead beside KV and weights: "
        if self.overhead_bytes is None:
            total += "not measured"
        else:
            total += exact(self.overhead_bytes)
        return (*lines, total, *self.overhead)


def measured_pool(found: Measured, price: Costs, layout: LayoutName, warnings: list[str]) -> Budget:
    """The pool that a run's server had, for the same engine; raises OptionError for another.

    Where the fitted bytes per token are not those of the config, the pool is scaled so that it
    holds as many tokens as the server's did.
    """
    same_length(found, price, "its KV pool")
    if found.pool_bytes is None:
        raise OptionError(
            FLAG, found.run, f"--kv-memory or --vram beside it: {found.backend} stated no KV pool"
        )
    steps = [f"KV pool = {exact(found.pool_bytes)} (stated by {found.source})"]
    pool = found.pool_bytes
    block = price.paged.block_bytes
    if layout == "paged" and found.num_blocks is not None and pool // block != found.num_blocks:
        steps.append(
            f"its server made {counted(found.num_blocks, 'block')} of it, the config "
            f"{pool // block:,}: counted as the server's, {found.num_blocks:,} x {block:,} B = "
            f"{found.num_blocks * block:,} B"
        )
        warnings.append(
            f"the config gives {pool // block:,} blocks for the pool, {found.source} has "
            f"{found.num_blocks:,}: another dtype, block size or tensor-parallel size?"
        )
        return Budget(found.num_blocks * block, tuple(steps))
    return Budget(*_scaled(found, price, pool, steps, warnings))


def _scaled(
    found: Measured, price: Costs, pool: int, steps: list[str], warnings: list[str]
) -> tuple[int, tuple[str, ...]]:
    """The pool in the config's bytes, where the run's tokens cost something else."""
    own = price.needed(2) - price.needed(1)
    taken = found.token_bytes
    low, high = found.token_bytes_low, found.token_bytes_high
    if taken is None or low is None or high is None or not own > 0:
        return pool, tuple(steps)
    if low <= own <= high or abs(taken / own - 1.0) <= _ALIKE:
        return pool, tuple(steps)
    scaled = int(pool * own / taken)
    steps.append(
        f"a token took {taken:,.1f} B there, the config says {own:,} B: {pool:,} B x {own:,} / "
        f"{taken:,.1f} = {scaled:,} B hold as many tokens"
    )
    warnings.append(
        f"{found.source} measured {taken:,.1f} B per token, the config says {own:,} B: figures "
        "count with what was measured"
    )
    return scaled, tuple(steps)


def measured_overhead(found: Measured, price: Costs) -> tuple[int, str]:
    """Overhead of the same engine on this hardware; raises OptionError where it is not known."""
    same_length(found, price, "its overhead")
    if found.overhead_bytes is None:
        why = found.overhead[0] if found.overhead else "nothing of the device was measured"
        raise OptionError(FLAG, found.run, f"--overhead beside it ({why})")
    return (
        found.overhead_bytes,
        f"overhead = {exact(found.overhead_bytes)} (measured: {found.source})",
    )


def same_length(found: Measured, price: Costs, what: str) -> None:
    """Raises OptionError where a run's figure would be taken over to another max_model_len."""
    asked = price.engine.max_model_len
    if found.max_model_len == asked:
        return
    raise OptionError(
        "--max-model-len",
        asked,
        f"{_known(found.max_model_len)}, that of {found.source}: {what} is that of its "
        "max_model_len and tells none of another (--kv-memory names a pool without it)",
    )


def _known(tokens: int | None) -> str:
    return "not stated" if tokens is None else f"{tokens:,}"


def part_line(name: str, size: int) -> str:
    """One part of the overhead."""
    return f"of it {name}: {short_size(size)}"
