"""One cell: an engine of the server, some equal requests, and what they take."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.errors import UsageError
from servers.contiguous.layout import probe_layout
from tests.gpu import predict
from tests.gpu.driver import Driver, GpuMemory, make_driver
from tests.gpu.models import Shape


@dataclass(frozen=True)
class Cell:
    """What is measured."""

    mode: str
    prompt_tokens: int
    output_tokens: int
    batch: int


@dataclass(frozen=True)
class Sweep:
    """All cells of a model; the cheap ones come first, in case time runs out."""

    modes: tuple[str, ...]
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    output_tokens: int
    max_model_len: int
    window: int

    @classmethod
    def full(cls) -> Sweep:
        """For a GPU."""
        modes = ("static", "dynamic", "sliding", "quantized-4", "quantized-8", "off")
        return cls(modes, (128, 512, 2048, 8192), (1, 4, 16), 12, 8192 + 16, predict.WINDOW)

    @classmethod
    def tiny(cls) -> Sweep:
        """For a CPU, in seconds."""
        modes = ("static", "dynamic", "sliding", "quantized-4", "quantized-8", "off")
        return cls(modes, (16, 40), (1, 3), 6, 64, predict.TINY_WINDOW)


@dataclass
class Row:
    """What was measured, in seconds and bytes; None is absent."""

    model: str
    cell: Cell
    #: why the cell was not run
    skipped: str | None = None
    #: means over the requests; all are submitted at once, and prefilled one after the other
    ttft_s: float | None = None
    tpot_s: float | None = None
    used_bytes: int | None = None
    predicted_used_bytes: int | None = None
    reserved_bytes: int | None = None
    part_bytes: dict[str, int] = field(default_factory=dict)
    #: torch's counters while the batch decodes: what the KV added, the most, the pool
    kv_allocated_bytes: int | None = None
    max_allocated_bytes: int | None = None
    least_allocated_bytes: int | None = None
    torch_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    temporary_peak_bytes: int | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cell in words."""
        cell = self.cell
        return f"{self.model} {cell.mode} {cell.prompt_tokens} tokens x {cell.batch}"

    @classmethod
    def not_run(cls, model: str, cell: Cell, why: str) -> Row:
        """A row that only says why."""
        return cls(model, cell, skipped=why)


def cells_of(sweep: Sweep) -> Iterator[Cell]:
    """By tokens in flight, ascending."""
    sizes = sorted((prompt * batch, prompt, batch) for prompt in sweep.prompts
                   for batch in sweep.batches)  # fmt: skip
    for _, prompt, batch in sizes:
        for mode in sweep.modes:
            yield Cell(mode, prompt, sweep.output_tokens, batch)


def run_cells(
    shape: Shape, model: Any, device: torch.device, sweep: Sweep, until: float
) -> list[Row]:
    """All cells that are likely to end before ``until`` (``time.perf_counter``)."""
    rows: list[Row] = []
    #: seconds per token in flight of the mode's last cell; texts grow, so it is doubled
    costs: dict[str, float] = {}
    warm_up(shape, model, device, sweep)
    for cell in cells_of(sweep):
        load = cell.batch * cell.prompt_tokens
        left = until - time.perf_counter()
        if left <= 2 * costs.get(cell.mode, 0.0) * load:
            rows.append(Row.not_run(shape.name, cell, "no time left"))
            continue
        began = time.perf_counter()
        rows.append(run_cell(shape, model, device, sweep, cell))
        costs[cell.mode] = (time.perf_counter() - began) / load
    return rows


def warm_up(shape: Shape, model: Any, device: torch.device, sweep: Sweep) -> None:
    """One short request in each mode: kernels are loaded, libraries have their workspaces."""
    for mode in sweep.modes:
        run_cell(shape, model, device, sweep, Cell(mode, min(sweep.prompts), 3, 1))


def run_cell(shape: Shape, model: Any, device: torch.device, sweep: Sweep, cell: Cell) -> Row:
    """Measure; a mode that is refused, or memory that runs out, is a row that says so."""
    row = Row(shape.name, cell)
    memory = GpuMemory(device)
    gc.collect()
    memory.empty_cache()
    before = memory.allocated()
    try:
        driver = make_driver(model, probe_layout(model, device), cell, sweep)
        _measure(row, driver, memory, before)
    except (UsageError, torch.OutOfMemoryError) as error:
        row.skipped = str(error).split("\n", 1)[0]
        return row
    except RuntimeError as error:
        # what ended the requests inside the engine; too little memory is no wrong figure
        if "OutOfMemoryError" in str(error):
            row.skipped = str(error)
        else:
            row.problems.append(str(error))
        return row
    _judge(row, shape, sweep, before)
    return row


def _measure(row: Row, driver: Driver, memory: GpuMemory, before: int | None) -> None:
    cell = row.cell
    driver.submit(cell.batch, cell.prompt_tokens, cell.output_tokens)
    # every request holds all its prompt, and none has ended
    while min(driver.generated()) < cell.output_tokens - 1:
        driver.step()
    shown = driver.snapshot()
    row.used_bytes, row.reserved_bytes = shown.kv_used_bytes, shown.kv_reserved_bytes
    row.part_bytes = dict(shown.kv_part_bytes)
    allocated = memory.allocated()
    if allocated is not None and before is not None:
        row.kv_allocated_bytes = allocated - before
    row.torch_reserved_bytes, row.device_used_bytes = memory.reserved(), memory.device_used()
    peak = driver.peak()
    if peak is not None:
        row.temporary_peak_bytes = peak.temporary_bytes
        row.max_allocated_bytes = peak.allocated_bytes
    driver.finish()
    row.ttft_s, row.tpot_s = driver.times()


def _judge(row: Row, shape: Shape, sweep: Sweep, before: int | None) -> None:
    """Hold what was measured against arithmetic; adds to ``row.problems``."""
    cell = row.cell
    # the last but one has been chosen and is not stored, and the first came from the prompt
    decoded = cell.output_tokens - 2
    row.predicted_used_bytes = predict.used_bytes(
        shape, cell.mode, cell.prompt_tokens, decoded, cell.batch, sweep.max_model_len, sweep.window
    )
    used, reserved = row.used_bytes or 0, row.reserved_bytes or 0
    _hold(row, used == row.predicted_used_bytes, f"used {used} B")
    _hold(row, used <= reserved, f"used {used} B > reserved {reserved} B")
    _hold(row, sum(row.part_bytes.values()) == used, "the parts are not the whole")
    if row.max_allocated_bytes is None or row.kv_allocated_bytes is None or before is None:
        return
    # torch rounds each block up to 512 B, and a pool's blocks may be 2 MiB
    slack = max(used // 50, 8 * 2**20)
    _hold(row, abs(row.kv_allocated_bytes - used) <= slack,
          f"torch has {row.kv_allocated_bytes} B more than before, the cache {used} B")  # fmt: skip
    row.least_allocated_bytes = (
        before + used + predict.least_temporary(shape, cell.mode, cell.prompt_tokens, cell.batch)
    )
    _hold(row, row.max_allocated_bytes >= row.least_allocated_bytes,
          f"the peak {row.max_allocated_bytes} B < {row.least_allocated_bytes} B")  # fmt: skip
    _hold(row, before + used <= (row.torch_reserved_bytes or 0) <= (row.device_used_bytes or 0),
          "not allocated <= reserved <= used on the device")  # fmt: skip


def _hold(row: Row, right: bool, problem: str) -> None:
    if not right:
        row.problems.append(problem)
