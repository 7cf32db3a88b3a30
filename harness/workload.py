"""What a run asks of its servers: lengths, loop, arrivals, limits; part of its manifest."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.records import Loop


class Ramp(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that changes over one level, from its start to its end."""

    strategy: Literal["linear", "exponential"]
    start_rps: float
    end_rps: float
    seconds: float


class TraceSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of which trace file is replayed, and how."""

    #: file name without its folder
    name: str
    #: of the file's bytes
    sha256: str
    start_s: float
    end_s: float | None
    #: 0.5 is twice as fast
    time_scale: float
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    over_length: Literal["clip", "scale", "skip"]
    #: requests replayed; of these made shorter; left out because of a cap
    requests: int
    shortened: int
    skipped: int
    #: prompts start with blocks that others start with too, as the trace says
    shared_prefixes: bool


class OpenLoop(msgspec.Struct, frozen=True, kw_only=True):
    """How an open loop asks: at a rate or along a trace, whatever the server does."""

    #: shape of the gamma distribution of the gaps: 1 is Poisson; None: equal gaps
    burstiness: float | None = 1.0
    #: requests in flight at most; those due beyond it wait and are late
    max_concurrency: int | None = None
    #: requests due in the first seconds of a level are not counted
    warmup_s: float = 0.0
    ramp: Ramp | None = None
    trace: TraceSource | None = None


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    """A long run at one level: how its streams are disturbed, and what counts as drift."""

    #: share of the requests whose stream the client closes before its end
    cancel_share: float
    #: pause after each stretch of load, with nothing in flight
    rest_s: float
    #: growth of process memory and of KV bytes at rest, per hour, that is no drift
    max_memory_growth_bytes: float
    #: growth of TTFT and TPOT per hour that is no drift, as a share of their median; None:
    #: latency is shown and not judged
    max_latency_growth: float | None


class KneeAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A search for the highest level that each server holds, with the levels chosen as it goes."""

    #: share of the requests that must meet the SLO
    attainment: float
    #: of all levels and restarts together; None: no limit
    budget_s: float | None = None
    #: restart a server of this machine's stack with what was found, and measure that
    verify: bool = True


class LengthMix(msgspec.Struct, frozen=True, kw_only=True, tag="mix"):
    """Requests of many lengths, in one order for every level and backend."""

    #: a trace's file name, or ``lognormal:...``
    source: str
    #: of the trace file's bytes
    sha256: str | None = None
    #: prompt and answer together have no more tokens
    context_tokens: int
    over_length: Literal["scale", "clip", "skip"]
    #: by which all lengths were multiplied
    factor: float
    #: in the list, which is begun again at its end; of these made shorter; left out
    requests: int
    shortened: int
    skipped: int
    mean_tokens: float


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True, tag="shared_prefix"):
    """Prompts of one length, of which a share begins with one system prompt."""

    prefix_tokens: int
    #: share of the requests, one variant of every level each
    reuse: tuple[float, ...]


class Conversations(msgspec.Struct, frozen=True, kw_only=True, tag="conversations"):
    """Conversations whose every turn sends all that was said before."""

    system_tokens: int
    turns: int
    #: tokens that a user adds at each turn
    user_tokens: int
    #: mean of the time between an answer's end and the next turn, drawn from an exponential
    think_s: float


#: What a closed loop asks for beside prompts of one length that share nothing.
Asks = LengthMix | SharedPrefix | Conversations


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of every backend; all of it must match between comparable runs.

    In an open loop ``levels`` are requests per second, the end of the ramp where there is
    one, and of a replay its mean rate; a replay's token counts are the medians of its
    requests. Of a matrix they are those of its longest request. A knee search has one level,
    the highest that it may ask for.
    """

    scenario: str
    endpoint: str
    prompt_tokens: int
    output_tokens: int
    levels: tuple[float, ...]
    repeats: int = 1
    seed: int = 0
    #: counted requests per level, in the order of ``levels``
    min_requests: tuple[int, ...]
    min_level_s: float
    max_level_s: float
    request_timeout_s: float
    idle_timeout_s: float
    #: over which the users of a level of a closed loop send their first requests
    ramp_up_s: float = 0.0
    #: None: a closed loop, in which ``levels`` are requests in flight
    open_loop: OpenLoop | None = None
    #: a matrix: (prompt, output) tokens of its requests, each at every level
    shapes: tuple[tuple[int, int], ...] | None = None
    soak: Soak | None = None
    #: None: prompts of one length that share nothing. Of a mix and of conversations the token
    #: counts above are medians
    asks: Asks | None = None
    #: a knee search
    search: KneeAsk | None = None

    @property
    def loop(self) -> Loop:
        """Closed: the next request waits for the last one. Open: for its time."""
        return "closed" if self.open_loop is None else "open"

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts are meant to start alike, so that a prefix cache may answer."""
        if isinstance(self.asks, SharedPrefix | Conversations):
            return True
        trace = self.open_loop.trace if self.open_loop is not None else None
        return trace is not None and trace.shared_prefixes


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds per request; None asks nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class MatrixLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps cells of a matrix from being measured; no part of what is compared."""

    #: cells that would end later, by the estimate, are left out
    budget_s: float | None = None
    #: whether levels whose requests do not all fit into the KV budget are left out
    skip_beyond_budget: bool = False
