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
