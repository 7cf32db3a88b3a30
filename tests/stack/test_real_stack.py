"""The real thing: `kvknee up` with vLLM and the contiguous server, then nothing left."""

from __future__ import annotations

import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from harness.stack.process import marked
from harness.stack.state import LaunchedBackend, StackState, read_state
from tests.stack.conftest import until
from tests.support.local_stack import free_port, kvknee

pytestmark = [pytest.mark.slow, pytest.mark.engines]


def state_of(home: Path) -> StackState:
    state = read_state(home)
    assert state is not None
    return state


def get(backend: LaunchedBackend, path: str, body: object = None) -> Any:
    parts = urlsplit(backend.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text if path == "/metrics" else json.loads(text)
    finally:
        connection.close()


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """Shared-memory files that these processes have mapped."""
    maps = "".join(Path(f"/proc/{process.pid}/maps").read_text() for process in processes)
    return {Path(part) for part in maps.split() if part.startswith("/dev/shm/")}


def test_up_serves_the_same_model_twice_and_down_leaves_nothing(tmp_path: Path) -> None:
    ports = ("--paged-port", str(free_port()), "--contiguous-port", str(free_port()))
    started = kvknee(tmp_path, "up", *ports)
    assert started.returncode == 0, started.stdout + started.stderr
    # no terminal here: plain lines, one at most every 5 s
    assert "waiting for" in started.stderr
    assert len(started.stderr.splitlines()) < 60
    state = state_of(tmp_path)
    try:
        for backend in state.backends:
            served = get(backend, "/v1/models")["data"][0]
            assert (served["id"], served["max_model_len"]) == ("tiny", 2048)
            asked = {"model": "tiny", "prompt": [84, 111, 32, 98, 101], "max_tokens": 8}
            answer = get(backend, "/v1/completions", {**asked, "ignore_eos": True})
            assert answer["usage"]["completion_tokens"] == 8
            assert backend.is_running()
        paged, contiguous = state.backends
        # 16 MiB / (128 tokens x 1,024 B) = 128 blocks; 16 MiB / (2,048 x 1,024 B) = 8 slots
        assert 'num_gpu_blocks="128"' in get(paged, "/metrics")
        assert 'block_size="128"' in get(paged, "/metrics")
        version = get(contiguous, "/version")
        assert version["slots"] == 8
        for fact in ("threads", "prefill_chunk", "kv_bytes_per_token", "device"):
            assert version[fact] == getattr(contiguous, fact)
        stated = f"torch {version['torch']}, transformers {version['transformers']}"
        assert contiguous.libraries == stated
        assert kvknee(tmp_path, "status").returncode == 0
        assert kvknee(tmp_path, "up", *ports).returncode == 0
        assert kvknee(tmp_path, "up", *ports, "--cache", "dynamic").returncode == 2
        listening = {
            connection.laddr[0]
            for process in marked(state.mark)
            for connection in process.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }
        shared = shared_memory(marked(state.mark))
        assert shared
        assert "0.0.0.0" not in listening
        assert "::" not in listening
    finally:
        stopped = kvknee(tmp_path, "down")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "killed" not in stopped.stdout
    assert marked(state.mark) == []
    assert [path for path in shared if path.exists()] == []
    assert kvknee(tmp_path, "down").stdout == "nothing is up\n"


def test_a_killed_api_server_leaves_nothing_after_down(tmp_path: Path) -> None:
    started = kvknee(tmp_path, "up", "--backends", "paged", "--paged-port", str(free_port()))
    assert started.returncode == 0, started.stdout + started.stderr
    state = state_of(tmp_path)
    paged = state.backends[0]
    # the API server, its engine core, the engine's worker, and Python's resource trackers
    assert len(marked(state.mark)) >= 3
    os.kill(paged.pid, signal.SIGKILL)
    until(lambda: not paged.is_running())
    status = kvknee(tmp_path, "status")
    assert status.returncode == 1
    assert "died" in status.stdout
    stopped = kvknee(tmp_path, "down")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert marked(state.mark) == []


def test_when_vllm_cannot_start_its_own_words_are_shown(tmp_path: Path) -> None:
    """A vLLM that dies in earnest: a budget that no memory of this machine holds."""
    started = kvknee(
        tmp_path,
        *("up", "--backends", "paged", "--paged-port", str(free_port())),
        *("--kv-budget", "100000GiB"),
    )
    assert started.returncode == 1
    *_, last = started.stderr.splitlines()
    assert last.startswith("kvknee: paged ended with exit code 1 while starting (ValueError: ")
    assert "requested memory for kv (100000.0 GiB)" in last
    assert "the last 25 lines of " in started.stderr
    assert read_state(tmp_path) is None
