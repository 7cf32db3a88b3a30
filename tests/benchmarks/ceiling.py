"""How many tokens per second does one client core measure to within 1 ms?

    python -m tests.benchmarks.ceiling [--first 500] [--step 250] [--last 3000]

The number of streams rises, each at 50 tokens/s, until the p99 of the arrival error (client
minus server, absolute times) passes 1 ms, or a token is lost or invented. Server and client
have a core each. ``server_late_p99_ms`` is how late the server itself wrote: where that is
more than a few ms, the server is at its own limit. Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from tests.benchmarks.paced import (
    Cores,
    Errors,
    Load,
    errors_of,
    forget,
    paced_server,
    read_truth,
    run_ours,
    server_late_p99_ms,
    table,
)

LIMIT_MS = 1.0


@dataclass(frozen=True)
class Step:
    """One number of streams."""

    streams: int
    events_per_s: float
    core: float
    server_late_p99_ms: float
    errors: Errors

    @property
    def holds(self) -> bool:
        exact = not (self.errors.lost or self.errors.invented or self.errors.failed)
        return exact and self.errors.arrival_p99_ms <= LIMIT_MS

    def row(self) -> dict[str, object]:
        return {
            "streams": self.streams,
            "events_per_s": round(self.events_per_s),
            "client_core": self.core,
            "arrival_p99_ms": self.errors.arrival_p99_ms,
            "ttft_p99_ms": self.errors.ttft_p99_ms,
            "itl_p99_ms": self.errors.itl_p99_ms,
            "coalesced": self.errors.coalesced,
            "server_late_p99_ms": self.server_late_p99_ms,
            "holds": self.holds,
        }


def measure(first: int, step: int, last: int) -> list[Step]:
    """Steps up to the first that does not hold."""
    cores, steps = Cores.of_this_machine(), []
    with paced_server(cores) as url:
        for streams in range(first, last + 1, step):
            forget(url)
            run = run_ours(url, Load(streams), cores)
            truth = read_truth(url)
            errors = errors_of(run.seen, truth)
            core = run.cpu_s / run.wall_s
            late_ms = server_late_p99_ms(truth)
            steps.append(Step(streams, run.events_per_s, core, late_ms, errors))
            if not steps[-1].holds:
                break
    return steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="the highest rate that is measured to 1 ms")
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--step", type=int, default=250)
    parser.add_argument("--last", type=int, default=3000)
    o = parser.parse_args()
    rows = [step.row() for step in measure(o.first, o.step, o.last)]
    print(table(rows))
    holding = [row["events_per_s"] for row in rows if row["holds"]]
    print(json.dumps({"steps": rows, "events_per_s": holding[-1] if holding else None}))


if __name__ == "__main__":
    main()
