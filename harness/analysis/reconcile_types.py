"""What a reconciliation hands to the report: stages, their steps, and what stays unexplained.

Bytes are whole numbers, so that the sums are exact: the end of a stage is its start, plus its
steps, plus what is unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.records import CellKey

#: ``process`` stands for the device where there is none: the server's resident memory
StageName = Literal["used", "reserved", "device", "process"]
#: What a difference is attributed to, in the order in which the tables show it.
Reason = Literal[
    "dtype",
    "replication",
    "window",
    "other_layers",
    "scales",
    "residual",
    "block_rounding",
    "padding",
    "slot",
    "budget_remainder",
    "null_block",
    "free_blocks",
    "promise",
    "empty_slots",
    "block_tables",
    "weights",
    "before_load",
    "temporaries",
    "allocator",
    "cuda_context",
]
#: Where a figure comes from: worked out from config and records, or read from the server.
Evidence = Literal["worked out", "measured"]
TheorySource = Literal["config", "server"]


@dataclass(frozen=True)
class Step:
    """One difference that has a name; ``amount_bytes`` is its mean, never below 0."""

    reason: Reason
    amount_bytes: int
    evidence: Evidence


@dataclass(frozen=True)
class Stage:
    """From one quantity to the next one above it, both means over the same moments."""

    name: StageName
    start_bytes: int
    steps: tuple[Step, ...]
    end_bytes: int
    #: mean over the moments of the size of what is unexplained at each, whatever its sign
    scatter_bytes: int | None = None

    @property
    def unexplained_bytes(self) -> int:
        """The end less all that is explained; below 0 where more is explained than is there."""
        return self.end_bytes - self.start_bytes - sum(step.amount_bytes for step in self.steps)

    @property
    def unexplained_share(self) -> float | None:
        """Its size over the end; None when the end is 0."""
        return abs(self.unexplained_bytes) / self.end_bytes if self.end_bytes else None


@dataclass(frozen=True)
class Reconciled:
    """The memory of one cell explained, at the moments when its server was scraped."""

    cell: CellKey
    #: moments looked at, of those in the window; the rest does not match the client's records
    moments: int
    samples: int
    #: means over the moments: requests that hold something, tokens whose K and V are stored
    requests: float
    tokens: float
    theory: TheorySource
    bytes_per_token: float
    #: bytes that those tokens need by theory, each prefix counted once where one is shared
    needed_bytes: int
    #: what the same tokens would need beyond that if no prefix were shared; None: none is
    shared_bytes: int | None
    stages: tuple[Stage, ...]
    #: what is absent, and why
    absent: tuple[str, ...] = ()

    def stage(self, name: StageName) -> Stage | None:
        """The stage of that name; None when its end was not measured."""
        return next((stage for stage in self.stages if stage.name == name), None)


@dataclass(frozen=True)
class Unreconciled:
    """A cell whose memory cannot be explained, and why."""

    cell: CellKey
    reason: str
