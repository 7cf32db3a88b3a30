"""The server as a process: starts, says what it set up, serves, ends at a signal with code 0."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contiguous.serving import open_request, wait_until
from tests.contiguous.support import byte_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bf16_model: Any) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    bf16_model.save_pretrained(made)
    byte_tokenizer().save_pretrained(made)
    return made


def is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, httpx.Client]]:
    """The running server, what it printed up to its address, and a client of it."""
    command = [sys.executable, "-m", "servers.contiguous", *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stderr is not None
            text = ""
            while "may wait" not in text:
                text += running.stderr.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", text)
            assert address is not None
            with httpx.Client(base_url=address[0], timeout=60) as client:
                wait_until(lambda: is_healthy(client))
                yield running, text, client
        finally:
            running.kill()


def test_serves_and_ends_in_order(folder: Path) -> None:
    """A stream is running when SIGTERM comes: it gets its error frame, the code is 0."""
    options = ("--kv-budget", "16MiB", "--max-model-len", "2048", "--threads", "1")
    with process("--model", str(folder), "--port", "0", *options) as (running, text, client):
        assert "1024 B per token, budget 16777216 B (16 MiB) = 16384 tokens" in text
        assert "8 slots of 2048 tokens" in text
        assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
        body = {"prompt": [1], "max_tokens": 2000, "stream": True, "ignore_eos": True}
        sock = open_request(client, "/v1/completions", body)
        received = sock.recv(4096)
        running.send_signal(signal.SIGTERM)
        while data := sock.recv(65536):
            received += data
        sock.close()
        assert b"the server is shutting down" in received
        assert b"data: [DONE]" in received
        assert running.wait(20) == 0


def test_interrupt_ends_an_idle_server(folder: Path) -> None:
    with process("--model", str(folder), "--port", "0", "--cache", "dynamic") as (running, text, _):
        assert "dynamic: a padded batch" in text
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()


def test_a_stop_does_not_wait_for_a_text(folder: Path, tmp_path: Path) -> None:
    """The template's 10^10 rounds take hours, and no thread can be stopped from outside."""
    made = tmp_path / "tiny"
    shutil.copytree(folder, made)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    tokenizer.save_pretrained(made)
    with process("--model", str(made), "--port", "0") as (running, _, client):
        body = {"messages": [{"role": "user", "content": "a"}]}
        sock = open_request(client, "/v1/chat/completions", body)
        # by its answer the server has read the request that was sent before
        assert is_healthy(client)
        running.send_signal(signal.SIGTERM)
        answer = b""
        while data := sock.recv(65536):
            answer += data
        sock.close()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"the server is shutting down" in answer
        assert running.wait(60) == 0
        assert running.stderr is not None
        assert "exits without waiting for it" in running.stderr.read()
