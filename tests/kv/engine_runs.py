"""Start real vLLM servers with small dummy models and compare their KV figures with ours.

``python -m tests.kv.engine_runs [docs/verify-engines.md]`` runs all of them, one at a
time, prints the table, and writes it to the file when one is named. The slow test runs
the same. It needs vLLM for the CPU and no weights.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from harness.kv.plan_types import Plan
from tests.kv.engine_cases import CASES, MIB, Case

START_LIMIT_S = 420.0
_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for .*?: ([\d.]+)x")


@dataclass(frozen=True)
class Figures:
    """What vLLM states about its pool."""

    num_blocks: int
    block_size: int
    pool_tokens: int
    max_concurrency: float
    log_tokens: int
    log_concurrency: float


def run_case(case: Case) -> Figures:
    """Start vLLM for one case, read its figures, stop it."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(case.config))
        log = Path(folder) / "server.log"
        with serving(case, model, log) as url:
            metrics = httpx.get(f"{url}/metrics").text
        return read_figures(metrics, log.read_text(errors="replace"))


def read_figures(metrics: str, log: str) -> Figures:
    """The figures of ``vllm:cache_config_info`` and of the log line."""
    line = next(row for row in metrics.splitlines() if row.startswith("vllm:cache_config_info{"))
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    logged = _SIZE.search(log)
    if logged is None:
        raise AssertionError("vLLM's log has no line with its KV cache size")
    return Figures(
        num_blocks=int(labels["num_gpu_blocks"]),
        block_size=int(labels["block_size"]),
        pool_tokens=int(labels["kv_cache_size_tokens"]),
        max_concurrency=float(labels["kv_cache_max_concurrency"]),
        log_tokens=int(logged.group(1).replace(",", "")),
        log_concurrency=float(logged.group(2)),
    )


@contextmanager
def serving(case: Case, model: Path, log: Path) -> Iterator[str]:
    """A vLLM server on a free port of this machine, healthy; stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(case.kv_memory_bytes)]
    command += ["--max-model-len", str(case.max_model_len), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--kv-cache-dtype", case.kv_dtype, *case.flags]
    if case.block_size is not None:
        command += ["--block-size", str(case.block_size)]
    if case.max_num_batched_tokens is not None:
        command += ["--max-num-batched-tokens", str(case.max_num_batched_tokens)]
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
            start_new_session=True,
        )
    try:
        wait_until_healthy(process, url, log)
        yield url
    finally:
        stop(process)


def wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Poll until the server answers; raises with the log's end when it died or is too slow."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    lines = log.read_text(errors="replace").splitlines()
    # the cause is what a worker said first, long before the last line
    causes = [line for line in lines if "Error: " in line and "WARNING" not in line]
    raise AssertionError("vLLM did not become healthy:\n" + "\n".join(causes[:8] or lines[-20:]))


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: they are one session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue


def row(case: Case, theirs: Figures) -> str:
    """One line of the table, ours beside theirs."""
    ours = case.ours()
    pairs = [
        (ours.num_blocks, theirs.num_blocks),
        (ours.pool_tokens, theirs.pool_tokens),
        (ours.max_concurrency, theirs.max_concurrency),
    ]
    cells = [f"{a:,.2f} / {b:,.2f}" if isinstance(b, float) else f"{a:,} / {b:,}" for a, b in pairs]
    equal = "yes" if agrees(ours, theirs) else "**no**"
    memory = f"{case.kv_memory_bytes // MIB} MiB"
    return " | ".join(["", case.name, memory, f"{case.max_model_len:,}", *cells, equal, ""]).strip()


def agrees(ours: Plan, theirs: Figures) -> bool:
    """Whether every figure is the same, the log's two decimals included."""
    return (
        ours.num_blocks == theirs.num_blocks
        and ours.pool_tokens == theirs.pool_tokens == theirs.log_tokens
        and ours.max_concurrency is not None
        and abs(ours.max_concurrency - theirs.max_concurrency) < 1e-9
        and f"{ours.max_concurrency:.2f}" == f"{theirs.log_concurrency:.2f}"
    )


HEADING = """# Our KV arithmetic against real vLLM

Each row is a real vLLM {version} on the CPU, started with dummy weights and a fixed KV
budget. The figures are those of `kvknee plan` / those of `vllm:cache_config_info` and of
the log line "KV cache size ... Maximum concurrency ...". Made by
`python -m tests.kv.engine_runs docs/verify-engines.md`; nothing here is typed in.

| model | KV budget | max_model_len | blocks | pool tokens | maximum concurrency | equal |
|---|---|---|---|---|---|---|
"""


def main(arguments: list[str]) -> int:
    """Run all cases; returns 1 when one differs."""
    from importlib.metadata import version

    rows, good = [], True
    for case in CASES:
        theirs = run_case(case)
        rows.append(row(case, theirs))
        good = good and agrees(case.ours(), theirs)
        print(rows[-1], flush=True)
    if arguments:
        text = HEADING.format(version=version("vllm-cpu")) + "\n".join(rows) + "\n"
        Path(arguments[0]).write_text(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
