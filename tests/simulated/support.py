"""A simulated server as a process of its own, and what tests ask of it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from harness.load.dialect import EndpointName, Prompt
from harness.records import RequestRecord
from tests.load.client_kit import make_ask, make_client, perform

PATIENCE_S = 20.0


@contextlib.contextmanager
def running(*options: str) -> Iterator[str]:
    """A server with these options beside a free port and the model ``m``; its URL."""
    command = [sys.executable, "-m", "harness", "serve", "simulated", "--port", "0"]
    with subprocess.Popen(
        [*command, "--model", "m", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"listening on (https?://\S+)\n", line)
            assert found, line
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0


def truth(url: str, since: int = 0) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/truth", params={"since": since}, timeout=PATIENCE_S)
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def ask(
    url: str,
    tokens: int,
    *,
    endpoint: EndpointName = "completions",
    times: int = 1,
    **limits: Any,
) -> list[RequestRecord]:
    """So many requests by one client, one after the other."""
    prompt: Prompt = (1, 2, 3, 4) if endpoint == "completions" else "hello"
    client = make_client(url, endpoint=endpoint, token_ids=True, **limits)
    try:
        return [perform(client, make_ask(prompt, tokens, seq)) for seq in range(times)]
    finally:
        client.close()
