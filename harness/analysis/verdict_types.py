"""A backend's verdict: its knees, each a bracket with its cause and evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.analysis.confidence_types import Confidence
from harness.analysis.forecast_types import Forecast, Mover
from harness.kv.capacity import Capacity
from harness.manifest import BackendInfo
from harness.plan.search_types import Cause, FoundStatus
from harness.records import Loop

KneeKind = Literal["capacity", "memory", "latency", "throughput"]
KneeStatus = Literal["bracketed", "below_first", "not_reached", "no_verdict"]


@dataclass(frozen=True)
class Knee:
    """A bracket: the last good level and the first bad one, why, and the evidence.

    ``bracketed`` has both; ``below_first``: already the lowest judged level is bad;
    ``not_reached``: none is bad up to ``last_good``; ``no_verdict``: nothing was judged.
    """

    kind: KneeKind
    status: KneeStatus
    last_good: float | None
    first_bad: float | None
    cause: Cause | None
    evidence: tuple[str, ...]
    #: 95 % interval of the true last good level, an end None where it is open; None where none
    #: was estimated
    interval: tuple[float | None, float | None] | None = None
    #: what speaks against the cause; None where that was not looked for
    against: tuple[str, ...] | None = None
    #: how the knee search ended whose answer this is; None where levels were judged one by one
    searched: FoundStatus | None = None


@dataclass(frozen=True)
class SloMiss:
    """The first level that misses the SLO."""

    level: float
    #: share of its ``n`` counted requests that met every limit
    share: float
    n: int
    #: the limits (TTFT, TPOT, E2E) that too few requests met; when each of them was met by
    #: enough, those that some request missed
    missed: tuple[str, ...]


@dataclass(frozen=True)
class BackendVerdict:
    """What one backend holds at one workload, and what stops it."""

    backend: BackendInfo
    prompt_tokens: int
    output_tokens: int
    capacity: Knee
    memory: Knee
    latency: Knee
    throughput: Knee
    predicted: Capacity | None
    #: the first level tried above the prediction; None when there is none or no prediction
    predicted_first_bad: float | None
    #: whether that is where requests were first kept out; None when it cannot be said
    prediction_holds: bool | None
    #: why there is no prediction although the server's facts are known; else None
    no_prediction: str | None = None
    #: share of the requests that must meet the SLO
    slo_share: float = 0.95
    #: what the first level beyond the SLO missed; None when none was
    slo_miss: SloMiss | None = None
    #: what a level is: requests in flight (closed) or per second (open)
    loop: Loop = "closed"
    #: of its cells
    variant: str = ""
    #: how sure the latency and throughput knees are
    confidence: Confidence = field(default_factory=Confidence)
    #: both predictions and what became of them; None without one
    forecast: Forecast | None = None
    #: what would move a memory knee; empty for any other
    movers: tuple[Mover, ...] = ()
