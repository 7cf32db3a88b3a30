"""From the client's records and the server's truth to the client's errors. Pure.

Both sides stamp with CLOCK_MONOTONIC of one machine, so their times can be subtracted.
TTFT error: the first token's arrival as the client has it, less when the server wrote it.
The request's "sent" is the client's own, so whatever the way to the server took is in the
true TTFT, as it is in the measured one. ITL error: each gap between two tokens as the
client has it, less the true one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.calibrate.result import Errors, LevelResult
from harness.records import RequestRecord

Floats = NDArray[np.float64]


class RequestTruth(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``/truth``, as far as it is needed; the server adds fields freely."""

    prompt_hash: str
    #: when the server had read the request
    t_received_s: float
    #: when each chunk was handed to the kernel
    token_s: tuple[float, ...]
    #: when each was due; empty where it keeps no schedule
    t_due_s: tuple[float, ...] = ()
    #: tokens of each chunk
    tokens: tuple[int, ...] = ()


class ClientReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the client's process says of itself: its last line."""

    open_s: float
    close_s: float
    cpu_ratio: float
    lag_max_s: float


def read_truth(text: bytes) -> dict[str, RequestTruth]:
    """The truth by the prompt's hash, from lines of JSON; raises msgspec.MsgspecError."""
    decoder = msgspec.json.Decoder(RequestTruth)
    lines = (decoder.decode(line) for line in text.splitlines() if line)
    return {entry.prompt_hash: entry for entry in lines}


@dataclass
class _Pool:
    """Differences gathered over the requests of a level."""

    ttft: list[float] = field(default_factory=list)
    to_server: list[float] = field(default_factory=list)
    gaps: list[Floats] = field(default_factory=list)
    late: list[Floats] = field(default_factory=list)
    arrived: list[Floats] = field(default_factory=list)
    requests: int = 0
    failed: int = 0
    lost: int = 0
    invented: int = 0
    events: int = 0
    coalesced: int = 0


def compare(
    streams: int,
    asked_tokens_per_s: float,
    records: Iterable[RequestRecord],
    truth: Mapping[str, RequestTruth],
    client: ClientReport,
) -> LevelResult:
    """The client's errors over the requests that it sent inside its window."""
    pool = _Pool()
    for record in records:
        if record.t_sent_s is not None:
            _add(pool, record, record.t_sent_s, truth.get(record.prompt_hash), client)
    arrived = np.concatenate([np.empty(0), *pool.arrived])
    inside = int(((arrived > client.open_s) & (arrived <= client.close_s)).sum())
    length_s = client.close_s - client.open_s
    return LevelResult(
        streams=streams,
        asked_tokens_per_s=asked_tokens_per_s,
        tokens_per_s=inside / length_s if length_s > 0 else 0.0,
        requests=pool.requests,
        failed=pool.failed,
        lost=pool.lost,
        invented=pool.invented,
        ttft_error=_errors(np.array(pool.ttft)),
        itl_error=_errors(np.concatenate([np.empty(0), *pool.gaps])),
        to_server=_errors(np.array(pool.to_server)),
        server_late=_errors(np.concatenate([np.empty(0), *pool.late])),
        coalesced_share=pool.coalesced / pool.events if pool.events else None,
        cpu_ratio=client.cpu_ratio,
        lag_max_s=client.lag_max_s,
    )


def _add(
    pool: _Pool,
    record: RequestRecord,
    sent_s: float,
    true: RequestTruth | None,
    client: ClientReport,
) -> None:
    measured = sent_s + np.cumsum(np.array(record.token_us, dtype=np.int64)) * 1e-6
    pool.arrived.append(np.repeat(measured, record.token_n or 1))
    if not client.open_s < sent_s <= client.close_s:
        return
    pool.requests += 1
    if record.outcome != "ok" or true is None:
        pool.failed += 1
        return
    written = np.array(true.token_s)
    received_n, written_n = sum(record.token_n or (1,) * measured.size), _tokens(true)
    pool.lost += max(0, written_n - received_n)
    pool.invented += max(0, received_n - written_n)
    pool.events += measured.size
    pool.coalesced += len(record.coalesced)
    pool.to_server.append(true.t_received_s - sent_s)
    if len(true.t_due_s) == written.size:
        pool.late.append(written - np.array(true.t_due_s))
    if measured.size and measured.size == written.size:
        pool.ttft.append(float(measured[0] - written[0]))
        pool.gaps.append(np.diff(measured) - np.diff(written))


def _tokens(true: RequestTruth) -> int:
    return sum(true.tokens) if true.tokens else len(true.token_s)


def _errors(differences: Floats) -> Errors:
    """Percentiles of the absolute differences, linear interpolation."""
    if not differences.size:
        return Errors(n=0)
    size = np.abs(differences)
    p50, p99 = np.percentile(size, (50, 99))
    return Errors(n=int(size.size), p50_s=float(p50), p99_s=float(p99), max_s=float(size.max()))
