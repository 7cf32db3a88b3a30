"""Does the contiguous server decode as fast as ``model.generate``? A table of ratios.

::

    python -m tests.benchmarks.contiguous_decode [--model DIR] [--dtype float32] [--rounds 7]

The server is a process of its own and is measured through HTTP, streaming; ``generate``
runs in this process, on the same model with the same number of threads. They take turns,
never at the same time, so that drift of the machine hits both. Rates are tokens per
second of whole requests, prefill included. The ratio compares each side's best round:
what else runs on the machine only ever slows a round down.
"""

from __future__ import annotations

import argparse
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from harness.kv.modes import read_mode
from tests.contiguous.support import byte_tokenizer, random_prompt, tiny_model

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 256
STREAMS = (1, 8)
#: modes by their names in a record
POLICIES = ("static", "static/exact", "dynamic")


@dataclass(frozen=True)
class Row:
    """One policy at one number of streams; tokens per second, round by round."""

    policy: str
    streams: int
    generate_rates: tuple[float, ...]
    server_rates: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Server / generate, the best round of each."""
        return max(self.server_rates) / max(self.generate_rates)

    @property
    def median_ratio(self) -> float:
        """The median of the rounds' ratios."""
        pairs = zip(self.server_rates, self.generate_rates, strict=True)
        return statistics.median(server / generate for server, generate in pairs)


def measure(
    folder: Path, *, dtype: str, threads: int, rounds: int, policies: Sequence[str] = POLICIES
) -> list[Row]:
    """All rows for the model in ``folder``."""
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()
    rows = []
    for policy in policies:
        with running_server(folder, policy, dtype, threads) as port:
            for streams in STREAMS:
                # one unmeasured turn each
                generate_rate(model, streams, 0)
                server_rate(port, streams, 0)
                pairs = [
                    (generate_rate(model, streams, turn), server_rate(port, streams, turn))
                    for turn in range(1, rounds + 1)
                ]
                mine, theirs = zip(*pairs, strict=True)
                rows.append(Row(policy, streams, mine, theirs))
    return rows


def prompts(streams: int, turn: int) -> list[list[int]]:
    """New ones for each turn, the same for both sides."""
    return [random_prompt(PROMPT_TOKENS, 1000 * turn + index) for index in range(streams)]


def generate_rate(model: Any, streams: int, turn: int) -> float:
    """``model.generate`` over one batch, greedily, never ending early."""
    config = GenerationConfig(
        max_new_tokens=OUTPUT_TOKENS, do_sample=False, eos_token_id=10**6, pad_token_id=0
    )
    ids = torch.tensor(prompts(streams, turn))
    start = time.perf_counter()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    took_s = time.perf_counter() - start
    if out.shape[1] != PROMPT_TOKENS + OUTPUT_TOKENS:
        raise RuntimeError(f"generate gave {out.shape[1] - PROMPT_TOKENS} tokens")
    return streams * OUTPUT_TOKENS / took_s


def server_rate(port: int, streams: int, turn: int) -> float:
    """All streams at once, from the first request's first byte to the last token's frame."""
    start = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        tails: dict[socket.socket, bytes] = {}
        for prompt in prompts(streams, turn):
            sock = send_request(port, prompt)
            tails[sock] = b""
            selector.register(sock, selectors.EVENT_READ, data=sock)
        received = 0
        while tails:
            for key, _ in selector.select():
                sock = key.data
                data = sock.recv(1 << 16)
                received += data.count(b'"text":')
                tails[sock] = (tails[sock] + data)[-32:]
                if b"[DONE]" in tails[sock] or not data:
                    selector.unregister(sock)
                    sock.close()
                    del tails[sock]
    took_s = time.perf_counter() - start
    if received != streams * OUTPUT_TOKENS:
        raise RuntimeError(f"the server sent {received} of {streams * OUTPUT_TOKENS} tokens")
    return received / took_s


def send_request(port: int, prompt: list[int]) -> socket.socket:
    """A connection on which one streaming request has been written."""
    body = {
        "prompt": prompt,
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(head.encode() + content)
    return sock


@contextmanager
def running_server(folder: Path, policy: str, dtype: str, threads: int) -> Iterator[int]:
    """The real server process; yields its port."""
    command = [sys.executable, "-m", "servers.contiguous", "--model", str(folder), "--port", "0"]
    mode = read_mode(policy)
    if mode is None:
        raise ValueError(f"no such mode: {policy}")
    command += ["--cache", mode.cache, "--reserve", mode.reserve, "--batching", mode.batching]
    command += ["--dtype", dtype, "--threads", str(threads)]
    command += ["--max-model-len", "1024", "--kv-budget", "64MiB"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            text = ""
            while "may wait" not in text:
                line = process.stderr.readline()
                if not line:
                    raise RuntimeError(f"the server did not start: {text}")
                text += line
            found = re.search(r"http://127\.0\.0\.1:(\d+)", text)
            assert found is not None
            port = int(found[1])
            wait_for_port(port)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def wait_for_port(port: int, timeout_s: float = 60.0) -> None:
    """Until somebody listens."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def save_tiny(folder: Path) -> Path:
    """The tests' small model, on disk."""
    tiny_model(torch.bfloat16).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def table(rows: list[Row], *, dtype: str, threads: int) -> str:
    """For the terminal."""
    head = (
        f"{PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, {dtype}, {threads} thread(s), tokens per second"
    )
    lines = [head, "mode          streams  generate    server   ratio   median of ratios"]
    for row in rows:
        lines.append(
            f"{row.policy:13} {row.streams:7} {max(row.generate_rates):9.0f} "
            f"{max(row.server_rates):9.0f} {row.ratio:7.2f} {row.median_ratio:9.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="server versus model.generate")
    parser.add_argument("--model", type=Path, help="folder; default: the tests' tiny model")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", nargs="+", default=POLICIES, help="such as static/pow2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or save_tiny(Path(temporary) / "tiny")
        rows = measure(
            folder,
            dtype=options.dtype,
            threads=options.threads,
            rounds=options.rounds,
            policies=options.modes,
        )
    print(table(rows, dtype=options.dtype, threads=options.threads))


if __name__ == "__main__":
    main()
