"""What a token event costs our client, beside a client that throws away all it reads.

    python -m tests.benchmarks.cpu_per_token [--streams 500] [--rounds 3]

wrk (Debian's package) and our client load the same paced server in turns, each with the same
number of streams. wrk only frames HTTP. Ours keeps, parses and times every event and writes
the records: all of that is counted. CPU time is user and system time of the client's process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.paced import (
    Cores,
    Load,
    forget,
    on_core,
    paced_server,
    read_truth,
    run_ours,
    table,
)

SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{body}'
"""


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU per token event, one entry per round."""

    streams: int
    ours_us: tuple[float, ...]
    wrk_us: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Ours / wrk's, the best round of each: what else runs only ever adds."""
        return min(self.ours_us) / min(self.wrk_us)

    def rows(self) -> list[dict[str, object]]:
        return [
            {"client": name, "streams": self.streams, "best_us": min(us), "worst_us": max(us)}
            for name, us in (("kvknee", self.ours_us), ("wrk", self.wrk_us))
        ]


def measure(streams: int, rounds: int) -> Cost:
    """Both clients in turns against one server."""
    # all at once, as wrk begins: how many events a wake-up brings is then the same for both
    cores, load = Cores.of_this_machine(), Load(streams, spread=False)
    ours, wrk = [], []
    with paced_server(cores) as url:
        for _ in range(rounds):
            forget(url)
            wrk.append(wrk_us_per_event(url, load, cores))
            forget(url)
            ours.append(run_ours(url, load, cores).cpu_us_per_event)
    return Cost(streams, tuple(ours), tuple(wrk))


def wrk_us_per_event(url: str, load: Load, cores: Cores) -> float:
    """wrk for about as long as our client runs; events are counted by the server."""
    body = {"model": "simulated", "prompt": [1, 2, 3, 4], "max_tokens": load.tokens}
    body |= {"stream": True, "ignore_eos": True, "return_token_ids": True}
    body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    seconds = 10
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(SCRIPT.replace("{body}", json.dumps(body)))
        command = ["wrk", "-t1", f"-c{load.streams}", f"-d{seconds}s", "-s", str(script)]
        command += ["--timeout", "60s", f"{url}/v1/completions"]
        process = subprocess.Popen(on_core(cores.client, *command), stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"wrk failed with exit code {process.returncode}")
    events = sum(len(entry.token_s) for entry in read_truth(url))
    return (usage.ru_utime + usage.ru_stime) / events * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="CPU per token event, beside wrk")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cost = measure(options.streams, options.rounds)
    print(table(cost.rows()))
    print(json.dumps({"rows": cost.rows(), "ratio": cost.ratio}))


if __name__ == "__main__":
    main()
