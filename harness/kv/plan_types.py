"""What a plan is asked and what it answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from harness.kv.engine import Engine, EngineOptions
from harness.kv.flops import PrefillFlops
from harness.kv.layouts import LayoutName

TABLE_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class PlanOptions:
    """What is asked; None means that it was not said."""

    engine: EngineOptions = field(default_factory=EngineOptions)
    dtype: str = "auto"
    kv_dtype: str = "auto"
    layout: LayoutName = "paged"
    batch: int = 1
    context: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    lengths: tuple[tuple[int, int], ...] | None = None
    seed: int = 0
    #: memory of one device, of which ``utilization`` is the engine's
    vram_bytes: int | None = None
    utilization: float = 0.92
    weights_bytes: int | None = None
    #: where ``weights_bytes`` comes from, for the reader
    weights_source: str = "given"
    overhead_bytes: int | None = None
    kv_memory_bytes: int | None = None


@dataclass(frozen=True)
class TableRow:
    """One context: bytes needed and reserved, and requests that the pool holds."""

    tokens: int
    needed_bytes: int
    reserved_bytes: int
    requests: int | None


@dataclass(frozen=True)
class LayoutRow:
    """One layout for the request in question; waste is reserved but not needed."""

    layout: LayoutName
    reserved_bytes: int
    waste_bytes: int
    requests: int | None


@dataclass(frozen=True)
class Variant:
    """The model with another number of KV heads."""

    name: str
    kv_bytes_per_token: int


@dataclass(frozen=True)
class Plan:
    """The answer; bytes are per tensor-parallel rank."""

    model: str
    architecture: str
    status: str
    dtype: str
    kv_dtype: str
    engine: Engine
    kv_bytes_per_token: int
    kv_bytes_per_token_full: int
    fixed_bytes_per_request: int
    layout: LayoutName
    #: tokens of one request, and how many requests at once the bytes below are for
    tokens: int
    batch: int
    needed_bytes: int
    reserved_bytes: int
    table: tuple[TableRow, ...]
    layouts: tuple[LayoutRow, ...]
    comparison: tuple[Variant, ...]
    prefill: tuple[PrefillFlops, ...]
    parameters: int | None
    pool_bytes: int | None
    num_blocks: int | None
    pool_tokens: int | None
    max_concurrency: float | None
    safe_concurrency: int | None
    derivation: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan under stable names; bytes are whole numbers, absent is null."""
        whole = asdict(self)
        whole["prefill"] = [{**asdict(row), "total": row.total} for row in self.prefill]
        whole["engine"] = {**asdict(self.engine), "in_flight_tokens": self.engine.in_flight_tokens}
        return whole
