"""How far are TTFT and ITL from the truth? The paced server tells when it wrote each token.

    python -m tests.benchmarks.fidelity [--streams 100,500,1000,2000] [--vllm-at 500]
                                        [--no-scenario] [--answers 2]

Server and client have a core each. Every row is one run at 50 tokens/s per stream:

    client    the stream client in a closed loop, users spread over an answer
    scenario  `locust -f scenarios/concurrency.py --headless` with a ramp over an answer,
              records read back from the run directory
    vllm      vLLM's benchmark client, where it is installed (`--vllm-at`, none where 0)

Requests are matched by their prompt, so each is held against the server's account of itself.
Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.plan.prompts import prompt_hash
from harness.stack.models import choose_model, make_if_missing
from tests.benchmarks.paced import (
    ITL_S,
    Cores,
    Errors,
    Load,
    Seen,
    as_row,
    errors_of,
    forget,
    on_core,
    paced_server,
    read_records,
    read_truth,
    run_ours,
    table,
)
from tests.benchmarks.vllm_bench_agreement import VLLM_BENCH
from tests.support.local_stack import ROOT, newest_run

RunClient = Callable[[str, Load, Cores], list[Seen]]
VLLM_AT = 500


@dataclass(frozen=True)
class Row:
    """One client at one number of streams."""

    client: str
    streams: int
    errors: Errors


def measure(
    loads: list[Load], *, scenario: bool = True, vllm_at: int | None = VLLM_AT
) -> list[Row]:
    """All rows, one run after the other against one server."""
    cores, rows = Cores.of_this_machine(), []
    with paced_server(cores) as url:
        for load in loads:
            for name, run in clients(load, scenario=scenario, vllm_at=vllm_at).items():
                forget(url)
                seen = run(url, load, cores)
                rows.append(Row(name, load.streams, errors_of(seen, read_truth(url))))
                print(table([as_row(client=name, streams=load.streams, errors=rows[-1].errors)]))
    return rows


def clients(load: Load, *, scenario: bool, vllm_at: int | None) -> dict[str, RunClient]:
    """Who is measured at this load."""
    chosen: dict[str, RunClient] = {"client": stream_client}
    if scenario:
        chosen["scenario"] = locust_scenario
    if load.streams == vllm_at and importlib.util.find_spec("vllm") is not None:
        chosen["vllm"] = vllm_bench
    return chosen


def stream_client(url: str, load: Load, cores: Cores) -> list[Seen]:
    """The client alone."""
    return run_ours(url, load, cores).seen


def locust_scenario(url: str, load: Load, cores: Cores) -> list[Seen]:
    """The whole product: Locust, levels, live metrics, journals."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "locust", "-f", "scenarios/concurrency.py", "--headless"]
        command += ["--backends", f"paced={url}", "--results-dir", folder]
        command += ["--levels", str(load.streams), "--prompt-tokens", "16"]
        command += ["--output-tokens", str(load.tokens), "--prometheus-url", "none"]
        command += ["--min-requests", str(load.streams * (load.answers - 1))]
        command += ["--ramp-up-seconds", str(load.tokens * ITL_S)]
        done = subprocess.run(
            on_core(cores.client, *command),
            cwd=ROOT,
            env={**os.environ, "KVKNEE_METRICS_PORT": "none"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            raise SystemExit(f"the scenario failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return [Seen.of(r) for r in read_records(newest_run(Path(folder)) / "records.jsonl")]


def vllm_bench(url: str, load: Load, cores: Cores) -> list[Seen]:
    """vLLM's benchmark client, on the client's core; its own figures of each request."""
    with tempfile.TemporaryDirectory() as folder:
        model = choose_model("tiny", Path(folder))
        make_if_missing(model)
        prompts = [f"request number {i}" for i in range(load.streams * load.answers)]
        dataset = Path(folder) / "prompts.jsonl"
        dataset.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
        command = [
            *(sys.executable, "-c", VLLM_BENCH, "--backend", "openai", "--base-url", url),
            *("--model", "simulated", "--tokenizer", model.path, "--dataset-name", "custom"),
            *("--dataset-path", str(dataset), "--skip-chat-template", "--disable-shuffle"),
            *("--custom-output-len", str(load.tokens), "--num-prompts", str(len(prompts))),
            *("--max-concurrency", str(load.streams), "--ignore-eos", "--temperature", "0"),
            *("--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", folder),
            *("--result-filename", "result.json"),
        ]
        done = subprocess.run(
            on_core(cores.client, *command), cwd=ROOT, capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise SystemExit(f"vLLM's benchmark client failed:\n{done.stderr[-2000:]}")
        result = json.loads((Path(folder) / "result.json").read_text())
    details = zip(
        prompts, result["start_times"], result["ttfts"], result["itls"], result["errors"],
        strict=True,
    )  # fmt: skip
    return [
        Seen(prompt_hash(text), start_s, np.cumsum([ttft_s, *gaps_s]), ok=not error)
        for text, start_s, ttft_s, gaps_s, error in details
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="errors of TTFT and ITL against the truth")
    parser.add_argument("--streams", default="100,500,1000,2000")
    parser.add_argument("--answers", type=int, default=2, help="one after the other, per stream")
    parser.add_argument("--tokens", type=int, default=250, help="per answer")
    parser.add_argument("--vllm-at", type=int, default=VLLM_AT, help="streams; 0: never")
    parser.add_argument("--no-scenario", action="store_true", help="the client alone")
    o = parser.parse_args()
    loads = [Load(int(n), o.tokens, o.answers) for n in o.streams.split(",")]
    rows = measure(loads, scenario=not o.no_scenario, vllm_at=o.vllm_at)
    shown = [as_row(client=row.client, streams=row.streams, errors=row.errors) for row in rows]
    print(table(shown))
    print(json.dumps(shown))


if __name__ == "__main__":
    main()
