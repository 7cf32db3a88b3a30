"""Our median TTFT and TPOT beside those of vLLM's own benchmark client, in one run.

    python -m tests.benchmarks.vllm_bench_agreement [--runs 5] [--concurrency 4]

Both clients load the same servers in turn, with equal lengths: five interleaved runs each
by default. vLLM's client counts text prompts, so its prompts are ASCII text that the
byte-level `tiny` model reads as one token per character. Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.local_stack import ROOT, LocalStack, local_stack, newest_run, run_scenario

PROMPT_TOKENS, OUTPUT_TOKENS = 512, 64
#: vLLM's command needs a distribution named vllm; its functions do not
VLLM_BENCH = (
    "import os, sys; from vllm.benchmarks.serve import add_cli_args, main; "
    "from vllm.utils.argparse_utils import FlexibleArgumentParser; "
    "parser = FlexibleArgumentParser(); add_cli_args(parser); "
    # the priority that our client takes when it may: without it the servers' spinning
    # processes make vLLM's client late
    "os.geteuid() == 0 and os.setpriority(os.PRIO_PROCESS, 0, -10); "
    "main(parser.parse_args(sys.argv[1:]))"
)


@dataclass(frozen=True)
class Medians:
    """One run's medians, in milliseconds."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True)
class Row:
    """One metric of one backend: the median over the runs of each client."""

    backend: str
    metric: str
    ours_ms: float
    vllm_ms: float

    @property
    def difference_ms(self) -> float:
        return self.ours_ms - self.vllm_ms

    @property
    def allowed_ms(self) -> float:
        """The larger of 5 % and 2 ms."""
        return max(0.05 * self.vllm_ms, 2.0)

    @property
    def agrees(self) -> bool:
        return abs(self.difference_ms) <= self.allowed_ms


def vllm_medians(url: str, model: Path, concurrency: int, requests: int, seed: int) -> Medians:
    """One run of vLLM's client; every request must succeed with the lengths asked."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        texts = (
            "".join(rng.choices(string.ascii_letters, k=PROMPT_TOKENS)) for _ in range(requests)
        )
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        command = [
            *(sys.executable, "-c", VLLM_BENCH, "--backend", "openai", "--base-url", url),
            *("--model", "tiny", "--tokenizer", str(model), "--dataset-name", "custom"),
            *("--dataset-path", str(prompts), "--skip-chat-template", "--ignore-eos"),
            *("--custom-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(requests)),
            *("--max-concurrency", str(concurrency), "--num-warmups", str(concurrency)),
            *("--temperature", "0", "--disable-tqdm", "--save-result", "--result-dir", folder),
            *("--result-filename", "result.json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"vLLM's benchmark client failed:\n{done.stderr[-2000:]}")
        result = json.loads((Path(folder) / "result.json").read_text())
    expected = (requests, requests * PROMPT_TOKENS, requests * OUTPUT_TOKENS)
    got = (result["completed"], result["total_input_tokens"], result["total_output_tokens"])
    if got != expected:
        raise SystemExit(f"lengths differ: vLLM's client says {got}, asked were {expected}")
    return Medians(result["median_ttft_ms"], result["median_tpot_ms"])


def our_medians(
    stack: LocalStack, backend: str, concurrency: int, requests: int, seed: int
) -> Medians:
    """One run of ours on one backend."""
    url = stack.paged_url if backend == "paged" else stack.contiguous_url
    with tempfile.TemporaryDirectory() as folder:
        done = run_scenario(
            stack,
            Path(folder),
            *("--backends", f"{backend}={url}", "--levels", str(concurrency)),
            *("--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)),
            *("--min-requests", str(requests), "--seed", str(seed)),
        )
        if done.returncode:
            raise SystemExit(f"the scenario failed:\n{done.stderr[-2000:]}")
        (cell,) = json.loads((newest_run(Path(folder)) / "summary.json").read_text())["cells"]
    return Medians(cell["median_ttft_ms"], cell["median_tpot_ms"])


def measure(runs: int, concurrency: int, requests: int) -> list[Row]:
    """Interleaved runs of both clients against both servers."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        # the pool holds all that is in flight: no queueing, so that both measure the engine
        with local_stack(home, "--kv-budget", "64MiB", "--cache", "static") as stack:
            model = home / "models" / "tiny"
            for backend, url in (("paged", stack.paged_url), ("contiguous", stack.contiguous_url)):
                ours, theirs = [], []
                for run in range(runs):
                    ours.append(our_medians(stack, backend, concurrency, requests, run))
                    theirs.append(vllm_medians(url, model, concurrency, requests, run))
                    print(
                        f"{backend} run {run + 1}: ours {ours[-1]}, vLLM's {theirs[-1]}", flush=True
                    )
                rows += [row(backend, metric, ours, theirs) for metric in ("ttft_ms", "tpot_ms")]
    return rows


def row(backend: str, metric: str, ours: Sequence[Medians], theirs: Sequence[Medians]) -> Row:
    """The median over runs of each client's medians."""
    return Row(
        backend,
        metric.removesuffix("_ms"),
        statistics.median(getattr(run, metric) for run in ours),
        statistics.median(getattr(run, metric) for run in theirs),
    )


def print_table(rows: Sequence[Row]) -> None:
    """The table, then the same as JSON."""
    print(f"{'backend':<12}{'metric':<8}{'ours':>10}{'vLLM':>10}{'diff':>9}{'allowed':>9}")
    for item in rows:
        print(
            f"{item.backend:<12}{item.metric:<8}{item.ours_ms:>7.2f} ms{item.vllm_ms:>7.2f} ms"
            f"{item.difference_ms:>+6.2f} ms{item.allowed_ms:>6.2f} ms"
            f"{'' if item.agrees else '   DIFFERS'}"
        )
    print(json.dumps([{**vars(item), "agrees": item.agrees} for item in rows]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=100, help="counted requests a run")
    options = parser.parse_args()
    rows = measure(options.runs, options.concurrency, options.requests)
    print_table(rows)
    return 0 if all(item.agrees for item in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
