"""The frozen types that cross stages, as they stand in the run directory.

Schema history
    1   first version

Times are ``CLOCK_MONOTONIC`` seconds of the machine that sent the request (Python's
``time.monotonic``), names end in their unit. What is absent is None, never 0.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

SCHEMA_VERSION = 1

FailureClass = Literal[
    "connect",
    "timeout",
    "reset",
    "http_error",
    "rejected",
    "in_band_error",
    "malformed",
    "truncated",
    "short_output",
    "cancelled",
]
Outcome = Literal["ok"] | FailureClass
FAILURE_CLASSES: tuple[str, ...] = get_args(FailureClass)

#: Where the token count of each event comes from, best evidence first.
TokenSource = Literal["token_ids", "usage", "content"]
#: Where N, the number of output tokens, comes from.
CountSource = Literal["usage", "client_estimated"]
#: ``kernel``: SO_TIMESTAMPNS of every read; ``mixed``: some reads had no stamp.
ClockSource = Literal["kernel", "mixed", "monotonic"]

#: Whether a request waits for the one before it, or for its own time.
Loop = Literal["closed", "open"]

Scalar = str | int | float | bool | None


class CellKey(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """What a measured figure is a figure of; records, windows and tables are keyed by it.

    ``level`` is the concurrency of a closed loop, or the requests per second of an open
    one. ``mode`` is the cache mode that the server states (``paged``, ``static``, ...).
    """

    backend: str
    mode: str
    prompt_tokens: int
    output_tokens: int
    level: float
    repeat: int = 0
    #: what sets it apart where one run asks one thing in several ways, such as ``reuse 0.9``
    variant: str = ""

    @property
    def label(self) -> str:
        """A short name for people: ``paged 512+128 c16``."""
        return self.label_in("closed")

    def label_in(self, loop: Loop) -> str:
        """The same, and in an open loop ``paged 512+128 16/s``."""
        level = f"c{self.level:g}" if loop == "closed" else f"{self.level:g}/s"
        variant = f" {self.variant}" if self.variant else ""
        repeat = f" r{self.repeat}" if self.repeat else ""
        lengths = f"{self.prompt_tokens}+{self.output_tokens}"
        return f"{self.backend} {lengths} {level}{variant}{repeat}"


class RequestRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One request as the client saw it: one line of ``records.jsonl``.

    ``(worker, seq)`` identifies it. Token arrays are compact: one entry per *token
    event* (a stream event that carries at least one token).
    """

    worker: str
    seq: int
    cell: CellKey
    user: int
    outcome: Outcome
    #: when the schedule wanted it sent; in a closed loop, when its user became free
    t_intended_s: float
    #: just before the first byte was written; None when nothing was
    t_sent_s: float | None = None
    #: when the client was done with the request, whatever its outcome
    t_end_s: float
    #: TCP and TLS set-up, both before ``t_sent_s``; None on a reused connection
    connect_s: float | None = None
    tls_s: float | None = None
    #: arrival of the response's first byte, from ``t_sent_s``
    headers_s: float | None = None

    clock: ClockSource = "monotonic"
    #: seconds by which wall and monotonic clock drifted apart during the request, when
    #: that is more than kernel stamps can be trusted with
    clock_step_s: float | None = None

    #: arrival of token events in integer microseconds: the first from ``t_sent_s``, each
    #: later one from its predecessor (delta-coded from absolute values: no drift)
    token_us: tuple[int, ...] = ()
    #: tokens per event; None when every event carried one
    token_n: tuple[int, ...] | None = None
    #: indices of events whose stamp is an upper bound: a later event shared their read
    coalesced: tuple[int, ...] = ()
    token_source: TokenSource | None = None
    #: first visible answer text, from ``t_sent_s``, when reasoning came before it
    first_content_us: int | None = None

    asked_prompt_tokens: int
    asked_output_tokens: int
    #: as counted by the server
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    #: N of TPOT = (E2E - TTFT) / (N - 1)
    output_tokens: int | None = None
    output_tokens_source: CountSource | None = None

    http_status: int | None = None
    #: the server's or the system's words, shortened, without secrets
    error: str | None = None
    finish_reason: str | None = None
    done_seen: bool = False
    #: events with data that was no JSON (keep-alives wrapped as data), or no UTF-8
    ignored_events: int = 0
    #: many frames at one instant at the end: something between buffers the stream
    buffered: bool = False
    #: of the prompt's token ids or text, to count distinct prompts
    prompt_hash: str
    bytes_received: int = 0
    #: leading prompt tokens that an earlier request of the run had too, by the client's plan:
    #: a shared system prompt, a conversation's history; None where nothing is meant to be shared
    shared_tokens: int | None = None
    #: which conversation, counted over its level, and which of its turns, from 1
    conversation: int | None = None
    turn: int | None = None


EventKind = Literal[
    "run_start",
    "level_start",
    "window_close",
    "level_end",
    "level_skipped",
    "level_redone",
    "client_sample",
    "backend_lost",
    "worker_lost",
    "fault",
    "interrupted",
    "resumed",
    "run_end",
    "level_verdict",
    "search_next",
    "search_found",
    "server_restarted",
]


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to the run: one line of ``events.jsonl``.

    ``level_start``    detail: users; of an open loop instead: rate_rps, and open_s and
                       close_s, between which requests that are due count, from t_s on
    ``window_close``   no counted request is sent after it; users go on uncounted
    ``level_end``      detail: reason (``complete``, ``time_limit``, ``backend_lost``, ...);
                       unsent, of an open loop: requests of the window that still waited.
                       Every request of the level stands in the records before it
    ``level_skipped``  detail: reason; planned, when it was left out on purpose
    ``level_redone``   the level begins anew in a resumed run; what was recorded of it before
                       ``t_s`` is not counted
    ``resumed``        the run goes on after an interruption. detail: worker (of the records
                       from here on), shift_s (added to ``CLOCK_MONOTONIC`` from here on, so
                       that times go on rising where the machine was restarted)
    ``client_sample``  detail: loop_lag_s (largest since the last sample), cpu_ratio
                       (of one core, since the last sample), in_flight, time_wait
                       (closed connections of the machine that still hold a port);
                       of several processes also worker, as the records name it
    ``worker_lost``    a process of the load died. detail: worker, host, pid, last_seq (highest
                       number of a record that arrived), records (that arrived), records_lost
                       (that it had told of), unshipped_s (from its last shipment to its last
                       sign of life; None when it never shipped)
    ``fault``          detail: what, text
    ``level_verdict``  of a knee search, what a level says about one goal. detail: the fields of
                       ``harness.plan.search_types.LevelVerdict``, texts joined by line ends
    ``search_next``    which level comes next. detail: why
    ``search_found``   what a search has come to, at its end or when it was cut short. detail:
                       the fields of ``search_types.Found`` but its levels; flags (to paste)
    ``server_restarted``  a server of this machine's stack, to verify what was found. detail:
                       backend, flags
    """

    t_s: float
    kind: EventKind
    cell: CellKey | None = None
    detail: dict[str, Scalar] = {}


class LevelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the level policy sees of a completed level."""

    cell: CellKey
    n_ok: int
    n_failed: int
    window_s: float | None
    reason: str
    #: from its start to its end; None when it never started
    took_s: float | None = None


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server under test, as it described itself before the load."""

    name: str
    #: without credentials
    url: str
    #: a row of ``harness.observe.backends``: ``vllm``, ``contiguous``, ..., ``openai`` (unknown)
    kind: str
    mode: str
    model: str
    engine_version: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_budget_bytes: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    #: layers x KV heads x head_dim x 2 x dtype bytes, from the model's config when known
    kv_bytes_per_token: int | None = None
    #: bits per element of a quantized cache
    kv_bits: int | None = None
    #: tokens that a sliding cache keeps in every layer
    sliding_window: int | None = None
    #: CPU threads that the server computes with
    threads: int | None = None
    #: tokens of a prompt that the contiguous server reads in one step
    prefill_chunk: int | None = None
    #: versions of what the server computes with, where it states them
    libraries: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    #: "launched" when this machine's stack started it and its flags are known
    source: Literal["launched", "attached"] = "attached"


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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``: what was run, where, on what."""

    schema_version: int
    run_id: str
    kvknee_version: str
    #: ``running`` until the end: a run whose process was killed keeps it
    status: Literal["running", "complete", "interrupted", "failed"]
    #: anchor that joins monotonic times to Prometheus: both clocks read together
    t0_s: float
    t0_wall_s: float
    t_end_s: float | None = None
    workload: Workload
    slo: Slo
    max_failure_rate: float
    backends: tuple[BackendInfo, ...]
    #: all that must match between comparable runs, flat: see ``harness.plan.fingerprint``
    fingerprint: dict[str, Scalar]
    #: the machine of the client and library versions, for information
    environment: dict[str, Scalar]
    scrape_interval_s: float
    prometheus_url: str | None = None
    #: of a matrix; None for other runs and for those of earlier versions
    matrix: MatrixLimits | None = None

    def backend(self, name: str) -> BackendInfo:
        """The backend of that name; raises KeyError."""
        for info in self.backends:
            if info.name == name:
                return info
        raise KeyError(name)


class Scrape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One scrape of one target: the raw text, or why there is none."""

    #: middle of the request, monotonic
    t_s: float
    took_s: float
    status: int | None = None
    text: str | None = None
    error: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A warning as a value: what is off, how bad, and what to do."""

    code: str
    #: ``note`` explains, ``warning`` weakens a figure, ``invalid`` forbids a verdict
    severity: Literal["note", "warning", "invalid"]
    text: str
    remedy: str
    cell: CellKey | None = None


def wire_bytes(record: msgspec.Struct) -> bytes:
    """One journal line, newline included."""
    return msgspec.json.encode(record) + b"\n"


def token_times_us(record: RequestRecord) -> list[int]:
    """Arrival of each token event in microseconds from ``t_sent_s``."""
    total, times = 0, []
    for delta in record.token_us:
        total += delta
        times.append(total)
    return times
