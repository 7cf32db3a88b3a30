"""What a worker tells of itself, and how the tellings of many workers become one.

A snapshot is *cumulative*: it holds all that its worker has counted in this run. The newest
snapshot of each worker replaces the one before, and the workers are added up. A snapshot
that comes twice, out of order, or after the end changes nothing it should not: one with a
sequence number not above the last is dropped, a late last report is simply the newest.
Histogram sums are whole nanoseconds, so that no order of adding changes a digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from harness.manifest import Manifest
from harness.workload import Slo


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One histogram: requests (or gaps) per bucket, the last one without an upper edge."""

    counts: tuple[int, ...]
    sum_ns: int


class CellCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that one worker counted at one level of one backend."""

    backend: str
    mode: str
    level: float
    #: users asked of this worker now; 0 when the level is over
    users: int
    in_flight: int
    outcomes: Mapping[str, int]
    #: requests that met every limit; None when no limit was set
    good: int | None
    prompt_tokens: int
    output_tokens: int
    #: by the names of ``harness.live.buckets.EDGES_NS``
    times: Mapping[str, Times]


class LevelStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latest level of one backend; ``level`` is 0 when it is over."""

    backend: str
    mode: str
    level: float
    start_wall_s: float


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker's latest sample of itself."""

    lag_s: float
    cpu_ratio: float
    #: None while there are too few samples to tell
    bound: bool | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """All that one worker counted in one run."""

    run: str
    #: unique per worker process: one that is started anew has another name
    worker: str
    #: rises with each snapshot of this worker
    seq: int
    cells: tuple[CellCounts, ...] = ()
    levels: tuple[LevelStart, ...] = ()
    client: ClientHealth | None = None


class BackendFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a backend before the load."""

    name: str
    mode: str
    model: str
    #: by theory, from the model's config; None when that is not known
    kv_bytes_per_token: int | None = None


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """A run begins: whatever was counted before belongs to another."""

    run: str
    scenario: str
    version: str
    start_wall_s: float
    slo: Slo
    prompt_tokens: int
    output_tokens: int
    backends: tuple[BackendFacts, ...]


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """A run is over; its figures stay until the next one begins."""

    run: str


Message = RunFacts | Snapshot | RunEnd


def encode(message: Message) -> bytes:
    """One line of JSON, its end included."""
    return msgspec.json.encode(message) + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line; raises ValueError for anything else."""
    return msgspec.json.decode(line, type=Message)


def run_facts(manifest: Manifest) -> RunFacts:
    """What the live metrics say of a run from its start."""
    return RunFacts(
        run=manifest.run_id,
        scenario=manifest.workload.scenario,
        version=manifest.kvknee_version,
        start_wall_s=manifest.t0_wall_s,
        slo=manifest.slo,
        prompt_tokens=manifest.workload.prompt_tokens,
        output_tokens=manifest.workload.output_tokens,
        backends=tuple(
            BackendFacts(
                name=info.name,
                mode=info.mode,
                model=info.model,
                kv_bytes_per_token=info.kv_bytes_per_token,
            )
            for info in manifest.backends
        ),
    )


def add_cells(snapshots: Iterable[Snapshot]) -> list[CellCounts]:
    """The cells of several workers, added up; in order of backend and level."""
    found: dict[tuple[str, str, float], CellCounts] = {}
    for snapshot in snapshots:
        for cell in snapshot.cells:
            key = (cell.backend, cell.mode, cell.level)
            found[key] = _sum(found[key], cell) if key in found else cell
    return [found[key] for key in sorted(found)]


def latest_levels(snapshots: Iterable[Snapshot]) -> dict[tuple[str, str], LevelStart]:
    """By (backend, mode): the level that was started last.

    It is over only when it is over for every worker that ran it.
    """
    found: dict[tuple[str, str], LevelStart] = {}
    for snapshot in snapshots:
        for level in snapshot.levels:
            key = (level.backend, level.mode)
            known = found.get(key)
            if known is None or _rank(level) > _rank(known):
                found[key] = level
    return found


def worst_client(snapshots: Iterable[Snapshot]) -> ClientHealth | None:
    """The largest of each figure: one slow worker is enough; None without a sample."""
    clients = [snapshot.client for snapshot in snapshots if snapshot.client is not None]
    if not clients:
        return None
    known = [client.bound for client in clients if client.bound is not None]
    return ClientHealth(
        lag_s=max(client.lag_s for client in clients),
        cpu_ratio=max(client.cpu_ratio for client in clients),
        bound=any(known) if known else None,
    )


def _rank(level: LevelStart) -> tuple[bool, float, float]:
    """A level under way before one that is over, then by its start."""
    return (level.level > 0, level.start_wall_s, level.level)


def _sum(one: CellCounts, other: CellCounts) -> CellCounts:
    return CellCounts(
        backend=one.backend,
        mode=one.mode,
        level=one.level,
        users=one.users + other.users,
        in_flight=one.in_flight + other.in_flight,
        outcomes={
            name: one.outcomes.get(name, 0) + other.outcomes.get(name, 0)
            for name in {**one.outcomes, **other.outcomes}
        },
        good=None if one.good is None or other.good is None else one.good + other.good,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        times={
            name: _sum_times(one.times[name], other.times[name])
            for name in one.times
            if name in other.times
        },
    )


def _sum_times(one: Times, other: Times) -> Times:
    return Times(
        counts=tuple(a + b for a, b in zip(one.counts, other.counts, strict=True)),
        sum_ns=one.sum_ns + other.sum_ns,
    )
