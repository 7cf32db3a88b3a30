"""What the engine says of itself, whoever reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from servers.contiguous.admission import FreeSpace
from servers.contiguous.cache import KvPart
from servers.contiguous.temporaries import StepPeak


@dataclass(frozen=True)
class EngineSnapshot:
    """The engine's gauges at one moment."""

    running: int
    waiting: int
    #: of those, the ones that the KV budget and not the turn keeps out
    waiting_for_kv: int
    kv_reserved_bytes: int
    kv_used_bytes: int
    kv_tokens_held: int
    kv_padding_bytes: int = 0
    #: of those that wait for KV, the ones that the free bytes would do for in one piece
    waiting_for_region: int = 0
    #: of an arena; None without one
    free_space: FreeSpace | None = None
    #: the bytes used, by what they are
    kv_part_bytes: Mapping[KvPart, int] = field(default_factory=dict)
    #: of the last seconds' steps; None where it cannot be measured, or none ran
    step_peak: StepPeak | None = None
