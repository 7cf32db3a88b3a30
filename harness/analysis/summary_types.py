"""What the analysis hands to the report: frozen, in seconds and bytes, None where absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.analysis.admission_types import AdmissionCounts
from harness.analysis.confidence_types import RequestSpread
from harness.analysis.fit_types import Fit
from harness.analysis.latency_types import LatencyFigures
from harness.analysis.open_types import OpenFigures
from harness.analysis.reconcile_types import Reconciled, Unreconciled
from harness.analysis.scenario_types import ScenarioFigures
from harness.analysis.server_ttft_types import ServerTtft
from harness.analysis.soak_types import SoakFigures
from harness.analysis.steady_types import Steady
from harness.analysis.table import ErrorText
from harness.analysis.tail_types import Tail
from harness.analysis.verdict_types import BackendVerdict
from harness.manifest import Manifest
from harness.plan.search_types import Found
from harness.records import CellKey, Finding

#: How the counted part of a level ended.
ClosedBy = Literal["event", "level_end", "lost", "never"]
#: What keeps requests out of the running batch at a level.
Admission = Literal["free", "kv_memory", "scheduler_limit", "compute", "unknown"]


@dataclass(frozen=True)
class Window:
    """The measured part of a level; times are monotonic seconds, None when it never came.

    ``ramp_s`` runs from the level's start until all users have a request in flight,
    ``warmup_s`` from then to ``open_s``, ``follow_s`` from ``close_s`` to the last counted
    token, ``drain_s`` from there to the level's end. ``full_share`` is the share of the
    time from ``open_s`` to the last counted token with all users in flight.
    """

    users: int
    start_s: float | None
    open_s: float | None
    close_s: float | None
    last_counted_s: float | None
    end_s: float | None
    closed_by: ClosedBy
    reason: str | None
    full_share: float | None
    ramp_s: float | None
    warmup_s: float | None
    follow_s: float | None
    drain_s: float | None
    #: mean requests in flight over the users in the same time; a user's short pauses, and
    #: those after its failed requests, are no gap
    load_share: float | None = None
    #: an open loop: counted are the requests due in the window, not those sent in it
    by_schedule: bool = False

    @property
    def span(self) -> tuple[float, float] | None:
        """(open, close) when the window opened and has a length, else None."""
        if self.open_s is None or self.close_s is None or self.close_s <= self.open_s:
            return None
        return self.open_s, self.close_s

    @property
    def length_s(self) -> float | None:
        """Length of the window; None when it never opened."""
        return None if self.span is None else self.span[1] - self.span[0]

    @property
    def complete(self) -> bool:
        """True when the window opened and was closed as planned, not by a loss."""
        return self.span is not None and self.closed_by == "event"


@dataclass(frozen=True)
class Counts:
    """Requests of a cell. ``sent = ok + failed + cancelled`` over the counted ones."""

    recorded: int
    sent: int
    ok: int
    failed: int
    cancelled: int
    by_class: tuple[tuple[str, int], ...]
    errors: tuple[ErrorText, ...]
    duplicates: int
    distinct_prompts: int

    @property
    def failure_share(self) -> float | None:
        """Failed / (ok + failed); None when nothing ended."""
        ended = self.ok + self.failed
        return self.failed / ended if ended else None


@dataclass(frozen=True)
class ThroughputFigures:
    """Rates inside the window; attainments over the counted requests, failures missing.

    Prompt tokens count when their request's first token arrives, because prefill is done
    then. Prefill and decode are two workloads, so the two rates stay apart.
    """

    requests_per_s: float | None
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    goodput_rps: float | None
    slo_attainment: float | None
    ttft_attainment: float | None
    tpot_attainment: float | None
    e2e_attainment: float | None
    mean_in_flight: float | None
    max_in_flight: int | None
    counted_prompt_tokens: int
    counted_output_tokens: int
    #: requests behind ``requests_per_s``, and the most of them that ended together
    requests_ended: int
    ended_together: int
    #: correlation of a request that meets the SLO with the one sent next; None where all do
    #: or none does
    slo_alike: float | None = None


@dataclass(frozen=True)
class Level:
    """Mean and largest of a gauge over the window's samples."""

    mean: float
    maximum: float


@dataclass(frozen=True)
class MemoryFigures:
    """What the server's gauges said inside the window, and what the client holds against it."""

    source: str
    samples: int
    failed_scrapes: int
    #: median time between two samples; None with fewer than two
    interval_s: float | None
    longest_gap_s: float | None
    usage_ratio: Level | None
    used_bytes: Level | None
    reserved_bytes: Level | None
    budget_bytes: float | None
    running: Level | None
    waiting: Level | None
    waiting_for_kv: Level | None
    preemptions: float | None
    prefix_hit_ratio: float | None
    queue_mean_s: float | None
    #: lower bound of the tokens that the cache must hold: prompt and tokens received of
    #: every request whose first token has arrived, at the times of the samples
    client_tokens_held: Level | None
    server_tokens_held: Level | None
    #: bytes of the pool over the tokens that fit into it, both from the server
    pool_bytes_per_token: float | None
    #: used bytes over tokens held: block rounding and padding included
    used_bytes_per_token_held: float | None
    device_used_bytes: Level | None
    process_rss_bytes: Level | None
    cuda_allocated_bytes: Level | None
    cuda_reserved_bytes: Level | None
    #: the pool is allocated before the load: device memory says nothing about the knee
    device_preallocated: bool


@dataclass(frozen=True)
class ClientHealth:
    """Whether the load generator itself was the limit.

    With several processes each figure of ``cpu``, ``lag`` and standstill is that of the
    worst one: they do not share a core, so a mean would hide the one that is late.
    """

    cpu_median: float | None
    lag_median_s: float | None
    lag_max_s: float | None
    lateness_p50_s: float | None
    lateness_p95_s: float | None
    samples: int
    bound_by: tuple[str, ...]
    #: sum of the lags long enough to be a standstill, within the measured time
    stood_still_s: float = 0.0
    #: processes of the load that sampled themselves inside the window
    workers: int = 0
    #: closed connections of the client's machine whose ports were not free yet, at most
    time_wait_peak: float | None = None
    #: how many it will be at this rate of new connections; None when they do not rise
    time_wait_expected: float | None = None

    @property
    def bound(self) -> bool:
        """True when the client, not the server, shaped the figures."""
        return bool(self.bound_by)


@dataclass(frozen=True)
class AdmissionVerdict:
    """What keeps requests out at a level, with the numbers that say so."""

    state: Admission
    evidence: str
    #: None where the samples do not tell
    counts: AdmissionCounts | None = None


@dataclass(frozen=True)
class Timeline:
    """A level over time, at most some hundred points; seconds from the level's start."""

    t_s: tuple[float, ...]
    in_flight: tuple[int, ...]
    sample_t_s: tuple[float, ...]
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]
    kv_used_bytes: tuple[float | None, ...]
    open_s: float | None
    close_s: float | None


@dataclass(frozen=True)
class CellFigures:
    """Everything known of one cell; ``memory`` is None when no sample lies in the window."""

    cell: CellKey
    window: Window
    counts: Counts
    latency: LatencyFigures
    throughput: ThroughputFigures
    memory: MemoryFigures | None
    client: ClientHealth
    admission: AdmissionVerdict
    min_requests: int | None
    #: None, or why this level gives no verdict
    unjudged: str | None
    timeline: Timeline
    #: None where the server's metrics state no TTFT
    server_ttft: ServerTtft | None = None
    #: None in a closed loop
    open_loop: OpenFigures | None = None
    #: which part of the window is steady; None when it never opened
    steady: Steady | None = None
    #: what drawing the requests again says
    spread: RequestSpread | None = None
    #: the requests beyond p99; None with too few to have any
    tail: Tail | None = None


@dataclass(frozen=True)
class SharedGpu:
    """Memory of GPUs that several backends use: one total for all of them together."""

    backends: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    samples: int
    #: over the whole run
    total_used_bytes: Level


@dataclass(frozen=True)
class SkippedCell:
    """A cell that was not measured, and why."""

    cell: CellKey
    reason: str


@dataclass(frozen=True)
class RunSummary:
    """A whole run: verdicts first, then cells in the order of the levels, then findings."""

    manifest: Manifest
    verdicts: tuple[BackendVerdict, ...]
    cells: tuple[CellFigures, ...]
    findings: tuple[Finding, ...]
    #: one for each group of GPUs; a backend that has its GPUs to itself is in none
    shared_gpus: tuple[SharedGpu, ...] = ()
    skipped: tuple[SkippedCell, ...] = ()
    #: of a soak alone
    soak: SoakFigures | None = None
    #: what only the run's own scenario has
    scenario: ScenarioFigures = field(default_factory=ScenarioFigures)
    #: each cell's memory explained, or why not, in the order of the cells
    reconciled: tuple[Reconciled | Unreconciled, ...] = ()
    fits: tuple[Fit, ...] = ()
    #: what a knee search came to, per backend and goal, as it said itself
    found: tuple[Found, ...] = ()

    def cells_of(self, backend: str) -> tuple[CellFigures, ...]:
        """The cells of one backend, by rising level."""
        return tuple(item for item in self.cells if item.cell.backend == backend)
