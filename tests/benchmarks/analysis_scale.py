"""Time and peak memory of ``kvknee report`` on a run of a million requests.

::

    python -m tests.benchmarks.analysis_scale [--requests 1000000] [--json FILE]

A run directory is made first (seeded, with the product's own types and journals: three
levels, two backends, pages of real servers once a second), by a process of its own: the
peak that Linux reports of a process is never below that of the process that started it.
Then ``kvknee report`` reads it in one process, timed from outside, and some of its figures
are compared with what follows from the arrays that the run was made of.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

EVENTS_PER_REQUEST = 10
#: with fewer the largest level sends its last request before every user has ended one
LEAST = 12_000
#: a time that passes through monotonic seconds of a run keeps no more than this
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Measured:
    """One ``kvknee report``: seconds, bytes, and what it read and wrote."""

    requests: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    records_bytes: int
    html_bytes: int

    def table(self) -> str:
        """For people."""
        per_request = self.peak_bytes / self.requests
        return (
            f"kvknee report on {self.requests:,} requests, "
            f"{self.requests * EVENTS_PER_REQUEST:,} token times, "
            f"{self.records_bytes / 1e6:,.0f} MB of records\n"
            f"  time      {self.wall_s:.1f} s ({self.cpu_s:.1f} s of CPU), "
            f"{self.wall_s / self.requests * 1e6:.1f} us a request\n"
            f"  peak      {self.peak_bytes / 2**20:,.0f} MiB, {per_request:,.0f} B a request\n"
            f"  HTML      {self.html_bytes / 1024:,.0f} KiB"
        )


def measure(requests: int, folder: Path) -> tuple[Measured, list[str]]:
    """Make a run of that size in ``folder``, report on it; the measure, and what is wrong."""
    truth_path = folder / "truth.json"
    made = [sys.executable, "-m", "tests.benchmarks.analysis_scale", "--requests", str(requests)]
    subprocess.run([*made, "--write", str(folder)], check=True)
    truth = json.loads(truth_path.read_text())
    run_dir = folder / truth["run"]
    measured = timed_report(run_dir, requests)
    summary = json.loads((run_dir / "summary.json").read_text())
    return measured, differences(summary, truth["cells"])


def timed_report(run_dir: Path, requests: int) -> Measured:
    """Run ``kvknee report`` as a process of its own; raises RuntimeError when it fails."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "harness", "report", str(run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"kvknee report ended with exit code {process.returncode}")
    return Measured(
        requests=requests,
        wall_s=wall_s,
        cpu_s=used.ru_utime + used.ru_stime,
        # Linux gives kilobytes of 1,024 bytes
        peak_bytes=used.ru_maxrss * 1024,
        records_bytes=(run_dir / "records.jsonl").stat().st_size,
        html_bytes=(run_dir / "report.html").stat().st_size,
    )


def reported(cell: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures of ``big_run.expected`` as summary.json has them."""
    latency = cell["latency"]
    return {
        "recorded": cell["counts"]["recorded"],
        "ok": cell["counts"]["ok"],
        "failed": cell["counts"]["failed"],
        "ttft_p50": latency["ttft_s"]["p50"],
        "ttft_p99": latency["ttft_s"]["p99"],
        "itl_p99": latency["itl_s"]["p99"],
        "tpot_p95": latency["tpot_s"]["p95"],
        "output_tokens_per_s": cell["throughput"]["output_tokens_per_s"],
        "coalesced_share": latency["coalesced_share"],
    }


def differences(summary: Mapping[str, Any], truth: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a summary differs from the truth, a line each."""
    found = {(cell["backend"], cell["level"]): reported(cell) for cell in summary["cells"]}
    wrong = [] if len(found) == len(truth) else [f"{len(found)} cells of {len(truth)}"]
    for cell in truth:
        own = found.get((cell["backend"], cell["level"]), {})
        for name, value in cell["figures"].items():
            said = own.get(name)
            if said is None or not math.isclose(said, value, rel_tol=TOLERANCE):
                wrong.append(f"{cell['backend']} c{cell['level']:g} {name}: {said}, not {value}")
    return wrong


def write(folder: Path, requests: int) -> None:
    """Make the run and ``truth.json`` beside it."""
    from tests.support.big_run import expected, write_big_run

    run_dir, cells = write_big_run(folder, requests)
    truth = {
        "run": run_dir.name,
        "cells": [
            {"backend": c.key.backend, "level": c.key.level, "figures": expected(c)} for c in cells
        ],
    }
    (folder / "truth.json").write_text(json.dumps(truth))


def main() -> int:
    """Measure, compare and print."""
    parser = argparse.ArgumentParser(description="kvknee report on a very large run")
    parser.add_argument("--requests", type=int, default=1_000_000, help=f"at least {LEAST:,}")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.requests < LEAST:
        parser.error(f"--requests {options.requests}: below {LEAST:,} no level has a window")
    if options.write is not None:
        write(options.write, options.requests)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        measured, wrong = measure(options.requests, Path(folder))
    figures = json.dumps({**asdict(measured), "differences": wrong})
    print(measured.table())
    print(figures)
    if options.json is not None:
        options.json.write_text(figures + "\n")
    for line in wrong:
        print(f"differs: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
