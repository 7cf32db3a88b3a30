"""Records as columns: what a million requests need to be summed up in seconds.

One ``CellTable`` holds every request of one cell. Records are read once, in a stream;
each leaves some numbers in typed arrays and is dropped.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.records import FAILURE_CLASSES, CellKey, RequestRecord

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Outcome codes: 0 is ok, 1 and up follow ``FAILURE_CLASSES``.
OUTCOMES: tuple[str, ...] = ("ok", *FAILURE_CLASSES)
_CODE = {name: code for code, name in enumerate(OUTCOMES)}
CANCELLED = _CODE["cancelled"]

_ESTIMATED, _BUFFERED, _FIRST_COALESCED, _KERNEL = 1, 2, 4, 8
#: Distinct error texts kept per cell; the rest is counted by class only.
MAX_ERROR_TEXTS = 20
_NO_COUNT = -1
_SEQ_BITS = 40
_INT_COLUMNS = (
    "id", "user", "out", "prompt", "cached", "asked", "asked_out", "coalesced", "ignored",
    "events", "shared", "conversation", "turn",
)  # fmt: skip


@dataclass(frozen=True)
class ErrorText:
    """A distinct failure: its class, HTTP status, the server's words, how often."""

    outcome: str
    http_status: int | None
    text: str | None
    count: int


@dataclass(frozen=True)
class CellTable:
    """Columns over the n requests of one cell; NaN and -1 stand for absent.

    Token columns are flat over all token events: those of request i are
    ``token_us[offsets[i]:offsets[i + 1]]``. ``first_s`` and ``last_s`` are the arrivals of
    the first and last token event from ``sent_s``, shape [n].
    """

    cell: CellKey
    sent_s: Floats
    intended_s: Floats
    end_s: Floats
    outcome: NDArray[np.int8]
    user: Ints
    output_tokens: Ints
    prompt_tokens: Ints
    cached_tokens: Ints
    asked_prompt: Ints
    asked_output: Ints
    #: leading prompt tokens that were meant to be shared
    shared_tokens: Ints
    conversation: Ints
    turn: Ints
    clock_step_s: Floats
    first_content_s: Floats
    coalesced: Ints
    ignored_events: Ints
    prompt_key: NDArray[np.uint64]
    estimated: Bools
    buffered: Bools
    first_coalesced: Bools
    kernel_clock: Bools
    offsets: Ints
    token_us: Ints
    token_n: NDArray[np.int32]
    first_s: Floats
    last_s: Floats
    tokens_seen: Ints
    errors: tuple[ErrorText, ...]
    duplicates: int

    @property
    def n(self) -> int:
        """Requests in the table."""
        return int(self.sent_s.size)

    @property
    def ok(self) -> Bools:
        """Which requests succeeded, shape [n]."""
        return np.asarray(self.outcome == 0, dtype=np.bool_)

    @property
    def reference_s(self) -> Floats:
        """When a request counts as sent: a request that never got out uses its intention."""
        return np.where(np.isnan(self.sent_s), self.intended_s, self.sent_s)

    @property
    def events(self) -> Ints:
        """Token events per request, shape [n]."""
        return np.diff(self.offsets)

    def token_rows(self) -> NDArray[np.int32]:
        """The request of each token event, shape [events]."""
        return np.repeat(np.arange(self.n, dtype=np.int32), self.events)

    def token_times_s(self) -> Floats:
        """Monotonic arrival of each token event, shape [events]."""
        elapsed = np.cumsum(self.token_us)
        before = _before(elapsed, self.offsets)
        since_sent = (elapsed - np.repeat(before, self.events)) * 1e-6
        return np.asarray(since_sent + np.repeat(self.sent_s, self.events), dtype=np.float64)

    def token_weights(self) -> Floats:
        """Tokens per event, scaled so that each request adds up to its N, shape [events].

        Where events are counted by their text a burst of several tokens is one event; the
        final count of the server sets it right.
        """
        known = (self.output_tokens > 0) & (self.tokens_seen > 0)
        scale = np.where(known, self.output_tokens / np.maximum(self.tokens_seen, 1), 1.0)
        return np.asarray(self.token_n * np.repeat(scale, self.events), dtype=np.float64)


class TableBuilder:
    """Collects the records of one cell; ``build`` may be called once."""

    def __init__(self, cell: CellKey) -> None:
        self.cell = cell
        self._floats: dict[str, array[float]] = {
            name: array("d") for name in ("sent", "intended", "end", "step", "content")
        }
        self._ints: dict[str, array[int]] = {name: array("q") for name in _INT_COLUMNS}
        self._outcome = array("b")
        self._flags = array("B")
        self._prompt_key = array("Q")
        self._token_us = array("q")
        self._token_n = array("i")
        self._workers: dict[str, int] = {}
        self._errors: Counter[tuple[str, int | None, str | None]] = Counter()

    def add(self, record: RequestRecord) -> None:
        """Take one record of this cell."""
        floats, ints = self._floats, self._ints
        floats["sent"].append(_float(record.t_sent_s))
        floats["intended"].append(record.t_intended_s)
        floats["end"].append(record.t_end_s)
        floats["step"].append(_float(record.clock_step_s))
        content_us = record.first_content_us
        floats["content"].append(np.nan if content_us is None else content_us * 1e-6)
        worker = self._workers.setdefault(record.worker, len(self._workers))
        ints["id"].append((worker << _SEQ_BITS) | record.seq)
        ints["user"].append(record.user)
        ints["out"].append(_int(record.output_tokens))
        ints["prompt"].append(_int(record.prompt_tokens))
        ints["cached"].append(_int(record.cached_prompt_tokens))
        ints["asked"].append(record.asked_prompt_tokens)
        ints["asked_out"].append(record.asked_output_tokens)
        ints["shared"].append(_int(record.shared_tokens))
        ints["conversation"].append(_int(record.conversation))
        ints["turn"].append(_int(record.turn))
        ints["coalesced"].append(len(record.coalesced))
        ints["ignored"].append(record.ignored_events)
        ints["events"].append(len(record.token_us))
        self._outcome.append(_CODE[record.outcome])
        self._flags.append(_flags(record))
        self._prompt_key.append(_key(record.prompt_hash))
        self._token_us.extend(record.token_us)
        self._token_n.extend(record.token_n or [1] * len(record.token_us))
        if record.outcome != "ok":
            self._note_error(record)

    def _note_error(self, record: RequestRecord) -> None:
        key = (record.outcome, record.http_status, record.error)
        if key not in self._errors and len(self._errors) >= MAX_ERROR_TEXTS:
            key = (record.outcome, None, None)
        self._errors[key] += 1

    def build(self) -> CellTable:
        """The columns, each request once: a record seen twice (worker, seq) is dropped."""
        ints = {name: np.frombuffer(column, np.int64) for name, column in self._ints.items()}
        floats = {name: np.frombuffer(column, np.float64) for name, column in self._floats.items()}
        rows = np.sort(np.unique(ints["id"], return_index=True)[1])
        lengths = ints["events"][rows]
        token_us = np.frombuffer(self._token_us, np.int64)
        token_n = np.frombuffer(self._token_n, np.int32)
        if rows.size < ints["id"].size:
            starts = np.cumsum(ints["events"]) - ints["events"]
            kept = _ranges(starts[rows], lengths)
            # without duplicates the arrays are taken as they are: they are the largest of all
            token_us, token_n = token_us[kept], token_n[kept]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        flags = np.frombuffer(self._flags, np.uint8)[rows]
        first_s, last_s = _first_and_last_s(token_us, offsets)
        return CellTable(
            cell=self.cell,
            sent_s=floats["sent"][rows],
            intended_s=floats["intended"][rows],
            end_s=floats["end"][rows],
            outcome=np.frombuffer(self._outcome, np.int8)[rows],
            user=ints["user"][rows],
            output_tokens=ints["out"][rows],
            prompt_tokens=ints["prompt"][rows],
            cached_tokens=ints["cached"][rows],
            asked_prompt=ints["asked"][rows],
            asked_output=ints["asked_out"][rows],
            shared_tokens=ints["shared"][rows],
            conversation=ints["conversation"][rows],
            turn=ints["turn"][rows],
            clock_step_s=floats["step"][rows],
            first_content_s=floats["content"][rows],
            coalesced=ints["coalesced"][rows],
            ignored_events=ints["ignored"][rows],
            prompt_key=np.frombuffer(self._prompt_key, np.uint64)[rows],
            estimated=(flags & _ESTIMATED) > 0,
            buffered=(flags & _BUFFERED) > 0,
            first_coalesced=(flags & _FIRST_COALESCED) > 0,
            kernel_clock=(flags & _KERNEL) > 0,
            offsets=offsets,
            token_us=token_us,
            token_n=token_n,
            first_s=first_s,
            last_s=last_s,
            tokens_seen=np.diff(np.concatenate([[0], np.cumsum(token_n)])[offsets]),
            errors=self._error_texts(),
            duplicates=len(ints["id"]) - len(rows),
        )

    def _error_texts(self) -> tuple[ErrorText, ...]:
        ranked = sorted(
            self._errors.items(),
            key=lambda item: (-item[1], item[0][0], item[0][1] or 0, item[0][2] or ""),
        )
        return tuple(ErrorText(*key, count) for key, count in ranked)


def build_tables(records: Iterable[RequestRecord]) -> dict[CellKey, CellTable]:
    """Read records in one pass into one table per cell."""
    builders: dict[CellKey, TableBuilder] = {}
    for record in records:
        builder = builders.get(record.cell)
        if builder is None:
            builder = builders[record.cell] = TableBuilder(record.cell)
        builder.add(record)
    tables: dict[CellKey, CellTable] = {}
    for cell in list(builders):
        tables[cell] = builders.pop(cell).build()
    return tables


def _float(value: float | None) -> float:
    return float("nan") if value is None else value


def _int(value: int | None) -> int:
    return _NO_COUNT if value is None else value


def _flags(record: RequestRecord) -> int:
    return (
        _ESTIMATED * (record.output_tokens_source == "client_estimated")
        | _BUFFERED * record.buffered
        | _FIRST_COALESCED * (0 in record.coalesced)
        | _KERNEL * (record.clock == "kernel")
    )


def _key(prompt_hash: str) -> int:
    """64 bits that tell prompts apart, the same in every process."""
    return int.from_bytes(hashlib.blake2b(prompt_hash.encode(), digest_size=8).digest(), "little")


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """Concatenated ``arange(start, start + length)``."""
    total = int(lengths.sum())
    shift = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return np.asarray(np.arange(total, dtype=np.int64) + shift, dtype=np.int64)


def _before(elapsed: Ints, offsets: Ints) -> Ints:
    """The running sum just before each request's first event, shape [n]."""
    sums = np.concatenate([np.zeros(1, np.int64), elapsed])
    return np.asarray(sums[offsets[:-1]], dtype=np.int64)


def _first_and_last_s(token_us: Ints, offsets: Ints) -> tuple[Floats, Floats]:
    """Arrival of the first and last event from sent, NaN for a request without any."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(token_us)])
    some = np.diff(offsets) > 0
    first = np.full(some.size, np.nan)
    first[some] = token_us[offsets[:-1][some]] * 1e-6
    last = np.where(some, (sums[offsets[1:]] - sums[offsets[:-1]]) * 1e-6, np.nan)
    return first, last
