"""Our median TTFT and TPOT beside those of vLLM's own benchmark client, in one run.

    python -m tests.benchmarks.vllm_bench_agreement [--model smollm2] [--runs 5] [--concurrency 4]

Both clients load the same servers in turn, with equal lengths: five interleaved runs each
by default. vLLM's client counts text prompts, so its prompts are words that are one token
each. Prints a table and JSON. Beside each run stands the client's mean TTFT minus the mean of
the server's own histogram (its warm-up included): it grows with a client that is late.

What is compared has to be the same. Three things made TTFT differ by 5 to 12 % until they
were made equal here:

the request    a prompt as text is tokenized inside TTFT, and counts with every chunk make the
               chunks longer: vLLM's client sends the body that ours sends.
the cores      servers fill every core they may use, and a client that shares one is late: the
               clients have a core of their own.
the pattern    equal requests in a closed loop fall into step with the engine: users that end
               in one step send, prefill and end together from then on, and which users do is
               decided by chance at the start (seen with both clients: one and three, three and
               one). Long prompts make that chance a fifth of TTFT; the defaults are short
               prompts and long answers, where each pattern has nearly the same median.

And a client's turn (ours under 1 ms, vLLM's some ms) decides which step a request meets when
the step is as short as the turn, as with `tiny`; a step of `smollm2` outlasts both.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from harness.plan.prompts import FALLBACK_TOKENS
from tests.support.local_stack import ROOT, LocalStack, local_stack, newest_run, run_scenario

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


BACKENDS = ("paged", "contiguous")
#: what both clients write, by the same names
SCALARS = ("median_ttft_ms", "median_tpot_ms", "mean_ttft_ms")
#: both servers' histogram of TTFT, from a request's arrival to its first token
SERVER_TTFT = re.compile(r"(?:vllm:|contiguous_)time_to_first_token_seconds_(sum|count)\S* (\S+)")


@dataclass(frozen=True)
class Load:
    """What both clients ask for."""

    model: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    requests: int


@dataclass(frozen=True)
class Medians:
    """One run's medians, in milliseconds."""

    ttft_ms: float
    tpot_ms: float
    #: mean TTFT, to be held against the server's own mean
    mean_ttft_ms: float


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


def one_token_words(model: Path) -> list[str]:
    """Texts that the model's tokenizer reads as one token each, whatever stands around them."""
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    # byte-level BPE writes a space as Ġ and never merges across words
    words = [f" {key[1:]}" for key in vocabulary if re.fullmatch("Ġ[a-z]{2,8}", key)]
    return sorted(words) or list(string.ascii_letters)


def vllm_medians(url: str, model: Path, load: Load, seed: int) -> Medians:
    """One run of vLLM's client; every request must succeed with the lengths asked."""
    rng, words = random.Random(seed), one_token_words(model)
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        texts = ("".join(rng.choices(words, k=load.prompt_tokens)) for _ in range(load.requests))
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        command = [
            *(sys.executable, "-c", VLLM_BENCH, "--backend", "openai", "--base-url", url),
            *("--model", load.model, "--tokenizer", str(model), "--dataset-name", "custom"),
            *("--dataset-path", str(prompts), "--skip-chat-template", "--ignore-eos"),
            *("--custom-output-len", str(load.output_tokens)),
            *("--num-prompts", str(load.requests)),
            *("--max-concurrency", str(load.concurrency), "--num-warmups", str(load.concurrency)),
            *("--extra-body", json.dumps(same_request(load))),
            *("--temperature", "0", "--disable-tqdm", "--save-result", "--result-dir", folder),
            *("--result-filename", "result.json"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"vLLM's benchmark client failed:\n{done.stderr[-2000:]}")
        result = json.loads((Path(folder) / "result.json").read_text())
    n = load.requests
    expected = (n, n * load.prompt_tokens, n * load.output_tokens)
    got = (result["completed"], result["total_input_tokens"], result["total_output_tokens"])
    if got != expected:
        raise SystemExit(f"lengths differ: vLLM's client says {got}, asked were {expected}")
    return Medians(*(result[name] for name in SCALARS))


def same_request(load: Load) -> dict[str, object]:
    """What makes a request of vLLM's client the one that ours sends.

    A prompt as text would be tokenized by the server, inside TTFT, and counts with every
    token make every chunk longer. Nothing of a prompt this short enters a prefix cache.
    """
    return {
        "prompt": [FALLBACK_TOKENS[i % len(FALLBACK_TOKENS)] for i in range(load.prompt_tokens)],
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }


def our_medians(stack: LocalStack, backend: str, load: Load, seed: int) -> Medians:
    """One run of ours on one backend."""
    url = stack.paged_url if backend == "paged" else stack.contiguous_url
    with tempfile.TemporaryDirectory() as folder:
        done = run_scenario(
            stack,
            Path(folder),
            *("--backends", f"{backend}={url}", "--levels", str(load.concurrency)),
            *("--prompt-tokens", str(load.prompt_tokens)),
            *("--output-tokens", str(load.output_tokens)),
            *("--min-requests", str(load.requests), "--seed", str(seed)),
        )
        if done.returncode:
            raise SystemExit(f"the scenario failed:\n{done.stderr[-2000:]}")
        (cell,) = json.loads((newest_run(Path(folder)) / "summary.json").read_text())["cells"]
    return Medians(*(cell[name] for name in SCALARS))


def beside_server(url: str, run: Callable[[], Medians]) -> tuple[Medians, float]:
    """A run's medians, and by how much its mean TTFT exceeds the server's own, in ms."""
    before = server_ttft(url)
    medians = run()
    after = server_ttft(url)
    mean_s = (after["sum"] - before["sum"]) / (after["count"] - before["count"])
    return medians, medians.mean_ttft_ms - 1000 * mean_s


def server_ttft(url: str) -> dict[str, float]:
    """Sum in seconds and count of the server's TTFT so far."""
    page = httpx.get(f"{url}/metrics", timeout=10).text
    return {name: float(value) for name, value in SERVER_TTFT.findall(page)}


def measure(runs: int, load: Load, backends: Sequence[str]) -> list[Row]:
    """Interleaved runs of both clients against each of the servers."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        # the pool holds all that is in flight: no queueing, so that both measure the engine
        longest = str(load.prompt_tokens + load.output_tokens)
        options = ("--model", load.model, "--max-model-len", longest, "--kv-budget", "128MiB")
        with local_stack_apart(home, *options, "--cache", "static") as stack:
            model = home / "models" / load.model
            for backend in backends:
                url = stack.paged_url if backend == "paged" else stack.contiguous_url
                ours: list[Medians] = []
                theirs: list[Medians] = []
                for run in range(runs):
                    for name, kept, one_run in (
                        ("ours", ours, partial(our_medians, stack, backend, load, run)),
                        ("vLLM's", theirs, partial(vllm_medians, url, model, load, run)),
                    ):
                        medians, beyond_ms = beside_server(url, one_run)
                        kept.append(medians)
                        print(
                            f"{backend} run {run + 1}, {name}: {medians.ttft_ms:.1f} ms TTFT, "
                            f"{medians.tpot_ms:.2f} ms TPOT (medians); mean TTFT "
                            f"{beyond_ms:+.1f} ms to the server's own",
                            flush=True,
                        )
                rows += [row(backend, metric, ours, theirs) for metric in ("ttft_ms", "tpot_ms")]
    return rows


@contextmanager
def local_stack_apart(home: Path, *options: str) -> Iterator[LocalStack]:
    """The stack on all cores but one, and this process with its clients on that one.

    Servers fill every core they may use. A client that shares one with them is late by its
    turn on that core, each client by another amount, and that would be all that differs.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for the clients, the others for the servers")
    os.sched_setaffinity(0, cores[:-1])
    with local_stack(home, *options) as stack:
        os.sched_setaffinity(0, cores[-1:])
        try:
            yield stack
        finally:
            os.sched_setaffinity(0, cores)


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
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="smollm2")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=20, help="counted requests a run")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    o = parser.parse_args()
    load = Load(o.model, o.prompt_tokens, o.output_tokens, o.concurrency, o.requests)
    rows = measure(o.runs, load, o.backends)
    print_table(rows)
    return 0 if all(item.agrees for item in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
