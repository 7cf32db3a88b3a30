"""What a plan is asked and what it answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from harness.kv.distribution import LengthSummary
from harness.kv.engine import Engine, EngineOptions
from harness.kv.flops import PrefillFlops
from harness.kv.layouts import LayoutName
from harness.kv.measured import Measured

TABLE_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192)
DEFAULT_UTILIZATION = 0.92

#: what decides a number of requests
Limit = Literal["kv_memory", "max_num_seqs", "max_model_len"]


@dataclass(frozen=True)
class PlanOptions:
    """What is asked; None means that it was not said."""

    engine: EngineOptions = field(default_factory=EngineOptions)
    dtype: str = "auto"
    kv_dtype: str = "auto"
    layout: LayoutName = "paged"
    #: whether the contiguous layouts are looked at beside ``layout``
    all_layouts: bool = False
    batch: int = 1
    context: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    lengths: tuple[tuple[int, int], ...] | None = None
    #: where ``lengths`` were read, for the reader
    lengths_source: str = "a distribution"
    seed: int = 0
    #: memory of one device, of which ``utilization`` is the engine's
    vram_bytes: int | None = None
    utilization: float = DEFAULT_UTILIZATION
    weights_bytes: int | None = None
    #: where ``weights_bytes`` comes from, for the reader
    weights_source: str = "given"
    overhead_bytes: int | None = None
    kv_memory_bytes: int | None = None
    #: of a run on the hardware in question
    measured: Measured | None = None


@dataclass(frozen=True)
class TableRow:
    """One context: bytes needed and reserved, and requests that run at once.

    ``requests`` is the least of what the pool holds (``memory_requests``) and of a given
    max_num_seqs, 0 beyond the longest context; ``limit`` says which of them decides. None:
    there is no pool.
    """

    tokens: int
    needed_bytes: int
    reserved_bytes: int
    requests: int | None
    memory_requests: int | None
    limit: Limit | None


@dataclass(frozen=True)
class LayoutRow:
    """One layout for the request in question; waste is reserved but not needed.

    With a distribution of lengths, bytes are means over it and ``requests`` are safe under
    it. ``peak_bytes`` and ``requests_with_copy`` count the copy that ``dynamic`` makes for a
    moment, which no other layout has (None).
    """

    layout: LayoutName
    reserved_bytes: int
    waste_bytes: int
    peak_bytes: int
    requests: int | None
    requests_with_copy: int | None


@dataclass(frozen=True)
class Variant:
    """The model with another number of KV heads; bytes of one rank, as all others."""

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
    #: (None with a distribution of lengths, whose means the bytes are then)
    tokens: int | None
    batch: int
    needed_bytes: int
    reserved_bytes: int
    #: as reserved, with the copy that ``dynamic`` makes for a moment
    peak_bytes: int
    #: the requests in question, when a distribution of lengths was given
    lengths: LengthSummary | None
    table: tuple[TableRow, ...]
    layouts: tuple[LayoutRow, ...]
    comparison: tuple[Variant, ...]
    prefill: tuple[PrefillFlops, ...]
    parameters: int | None
    pool_bytes: int | None
    num_blocks: int | None
    pool_tokens: int | None
    max_concurrency: float | None
    #: requests that run to their last token together; of ``dynamic``, those that the
    #: contiguous server admits by its promises
    safe_concurrency: int | None
    #: of ``dynamic``: requests whose peak fits as well; None for other layouts
    safe_with_copy: int | None
    derivation: tuple[str, ...]
    warnings: tuple[str, ...]
    #: requests that the pool holds while they are out of step, and the share of the time in
    #: which they need more than it has; None where prompt and output are not told apart
    steady_concurrency: int | None = None
    steady_overflow: float | None = None
    #: what a run measured, one fact a line
    measured: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan under stable names; bytes are whole numbers, absent is null."""
        whole = asdict(self)
        whole["prefill"] = [{**asdict(row), "total": row.total} for row in self.prefill]
        whole["engine"] = {**asdict(self.engine), "in_flight_tokens": self.engine.in_flight_tokens}
        return whole
