"""The paced server and our client, each on a core of its own, and what separates them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from harness.records import RequestRecord, token_times_us
from tests.support.local_stack import ROOT

TTFT_S, ITL_S = 0.05, 0.02
RATE_TPS = 1 / ITL_S
LISTENING = "listening on "

Floats = npt.NDArray[np.float64]


class TrueTimes(msgspec.Struct):
    """What the server says of one request: a line of ``/truth``, as far as it is used."""

    prompt_hash: str
    t_received_s: float
    token_s: list[float]
    #: when each write was due
    t_due_s: list[float]


@dataclass(frozen=True)
class Cores:
    """One core for the server, one for the client."""

    server: int
    client: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        """Two of the cores that this process may use; raises SystemExit when it has one."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("two cores are needed: one for the server, one for the client")
        return cls(server=cores[-1], client=cores[0])


def on_core(core: int, *command: str) -> list[str]:
    """The command, kept to one core, with the priority that a run's client takes if it may.

    Everybody gets the same: servers, our client, others' clients.
    """
    first = ["nice", "-n", "-10"] if os.geteuid() == 0 else []
    return [*first, "taskset", "-c", str(core), *command]


@contextmanager
def paced_server(cores: Cores, ttft_s: float = TTFT_S, itl_s: float = ITL_S) -> Iterator[str]:
    """The simulated server in mode paced; yields its URL."""
    command = [sys.executable, "-m", "harness", "serve", "simulated", "--mode", "paced"]
    command += ["--port", "0", "--ttft", repr(ttft_s), "--itl", repr(itl_s)]
    with subprocess.Popen(
        on_core(cores.server, *command), stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if LISTENING not in line:
                raise RuntimeError(f"the server did not start: {line!r}")
            yield line.partition(LISTENING)[2].split()[0]
        finally:
            process.terminate()
            process.wait(30)


def forget(url: str) -> None:
    """Let the server begin a new account."""
    httpx.post(f"{url}/truth/reset", timeout=60).raise_for_status()


def read_truth(url: str) -> list[TrueTimes]:
    """The server's account of all requests since it was told to forget."""
    lines = httpx.get(f"{url}/truth", timeout=120).raise_for_status().content.splitlines()
    decoder = msgspec.json.Decoder(TrueTimes)
    return [decoder.decode(line) for line in lines]


@dataclass(frozen=True)
class Load:
    """A closed loop of streams, each of so many answers one after the other."""

    streams: int
    tokens: int = 250
    answers: int = 2
    #: whether streams begin one by one over the time of an answer, or all at once
    spread: bool = True


@dataclass(frozen=True)
class Measured:
    """One run of our client."""

    records: list[RequestRecord]
    #: CPU seconds of the client process from its first request to its last record
    cpu_s: float
    wall_s: float

    @property
    def seen(self) -> list[Seen]:
        return [Seen.of(record) for record in self.records]

    @property
    def events(self) -> int:
        return sum(len(record.token_us) for record in self.records)

    @property
    def events_per_s(self) -> float:
        return self.events / self.wall_s

    @property
    def cpu_us_per_event(self) -> float:
        return self.cpu_s / self.events * 1e6


def run_ours(url: str, load: Load, cores: Cores) -> Measured:
    """Our client in a process of its own: connections, parsing and journal included."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "records.jsonl"
        command = [sys.executable, "-m", "tests.benchmarks.paced_client", url, str(journal)]
        command += [str(load.streams), str(load.tokens), str(load.answers), str(int(load.spread))]
        done = subprocess.run(
            on_core(cores.client, *command),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            cwd=ROOT,
        )
        return Measured(read_records(journal), **json.loads(done.stdout))


def read_records(journal: Path) -> list[RequestRecord]:
    """All lines of a ``records.jsonl``."""
    decoder = msgspec.json.Decoder(RequestRecord)
    return [decoder.decode(line) for line in journal.read_bytes().splitlines()]


@dataclass(frozen=True)
class Seen:
    """One request as a client saw it."""

    prompt_hash: str
    t_sent_s: float
    #: of each token event, from ``t_sent_s``
    arrivals_s: Floats
    ok: bool
    coalesced: int = 0

    @classmethod
    def of(cls, record: RequestRecord) -> Seen:
        """Our record's view."""
        arrivals_s = np.array(token_times_us(record), dtype=np.float64) / 1e6
        sent_s = record.t_sent_s or record.t_end_s
        ok = record.outcome == "ok"
        return cls(record.prompt_hash, sent_s, arrivals_s, ok, len(record.coalesced))


@dataclass(frozen=True)
class Errors:
    """How far a client's figures are from the truth, request by request; milliseconds."""

    requests: int
    events: int
    failed: int
    lost: int
    invented: int
    coalesced: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    #: of each event, in absolute time
    arrival_p99_ms: float


def errors_of(seen: Sequence[Seen], truth: Sequence[TrueTimes]) -> Errors:
    """Each request beside the server's own account of it.

    TTFT is held against first token written - request read, ITL against the gaps between the
    writes. An event on one side only is lost or invented, and its request's times are not
    compared.
    """
    by_hash = {entry.prompt_hash: entry for entry in truth}
    extras = [len(s.arrivals_s) - len(by_hash[s.prompt_hash].token_s) for s in seen]
    whole = [
        (s, np.array(by_hash[s.prompt_hash].token_s), by_hash[s.prompt_hash].t_received_s)
        for s, extra in zip(seen, extras, strict=True)
        if s.ok and not extra
    ]
    if not whole:
        raise SystemExit(f"none of {len(seen)} requests came whole")
    ttft = np.array([s.arrivals_s[0] - (true[0] - read_s) for s, true, read_s in whole])
    itl = np.concatenate([np.diff(s.arrivals_s) - np.diff(true) for s, true, _ in whole])
    late = np.concatenate([s.t_sent_s + s.arrivals_s - true for s, true, _ in whole])
    ttft_p50, ttft_p99 = _percentiles_ms(ttft)
    itl_p50, itl_p99 = _percentiles_ms(itl)
    return Errors(
        requests=len(seen),
        events=sum(len(s.arrivals_s) for s in seen),
        failed=sum(not s.ok for s in seen),
        lost=sum(max(-extra, 0) for extra in extras),
        invented=sum(max(extra, 0) for extra in extras),
        coalesced=sum(s.coalesced for s in seen),
        ttft_p50_ms=ttft_p50,
        ttft_p99_ms=ttft_p99,
        itl_p50_ms=itl_p50,
        itl_p99_ms=itl_p99,
        arrival_p99_ms=_percentiles_ms(late)[1],
    )


def server_late_p99_ms(truth: Sequence[TrueTimes]) -> float:
    """By how much the server wrote after the time that it had set itself."""
    late = [np.array(entry.token_s) - np.array(entry.t_due_s) for entry in truth]
    return _percentiles_ms(np.concatenate(late))[1]


def _percentiles_ms(errors_s: Floats) -> tuple[float, float]:
    """p50 and p99 of the sizes of errors."""
    p50, p99 = np.percentile(np.abs(errors_s), (50, 99)) * 1e3
    return float(p50), float(p99)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the same keys, for the terminal."""
    keys = list(rows[0])
    cells = [[_shown(row[key]) for key in keys] for row in rows]
    widths = [max(len(key), *(len(line[i]) for line in cells)) for i, key in enumerate(keys)]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in [keys, *cells]
    )


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def as_row(**parts: object) -> dict[str, object]:
    """Keys and values, dataclasses unfolded."""
    row: dict[str, object] = {}
    for key, value in parts.items():
        row |= asdict(value) if isinstance(value, Errors) else {key: value}
    return row
