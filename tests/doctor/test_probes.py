"""The machine as it is really read."""

from __future__ import annotations

import http.server
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import psutil
import pytest
from msgspec.structs import replace

from harness.doctor.facts import Holder, LocalStack, Memory, PortUse
from harness.doctor.probes import (
    disk,
    has_library,
    local_stack,
    memory,
    port_use,
    served_model,
    shm_bytes,
    this_machine,
)
from harness.stack.process import started_s
from harness.stack.state import LaunchedBackend, StackState, write_state
from tests.support.local_stack import free_port


def test_a_port_that_is_held_names_its_holder() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        name = psutil.Process().name()
        assert port_use(port) == PortUse("taken", Holder(os.getpid(), name))
    assert port_use(port) == PortUse("free")


def test_a_port_held_on_every_address_is_held_here_too() -> None:
    with socket.socket() as holder:
        holder.bind(("0.0.0.0", 0))
        holder.listen()
        assert port_use(holder.getsockname()[1]).state == "taken"


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    found = disk(tmp_path / "a" / "b")
    stats = os.statvfs(tmp_path)
    assert (found.folder, found.writable) == (tmp_path, True)
    # others write meanwhile: the same to a tenth of the whole disk
    assert abs(found.free_bytes - stats.f_bavail * stats.f_frsize) < (
        stats.f_blocks * stats.f_frsize / 10
    )


def test_a_file_in_the_place_of_a_folder_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    assert not disk(tmp_path / "results").writable


def test_a_containers_memory_limit_counts(tmp_path: Path) -> None:
    machine = memory(tmp_path / "none")
    assert machine.total_bytes == psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert memory(tmp_path) == Memory(1000, 600)
    (tmp_path / "memory.current").write_text("1001\n")
    assert memory(tmp_path) == Memory(1000, 0)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(tmp_path).total_bytes == machine.total_bytes


def test_shared_memory_and_libraries(tmp_path: Path) -> None:
    assert shm_bytes(tmp_path / "none") is None
    assert shm_bytes(tmp_path) is not None
    assert has_library("libc.so.6")
    assert not has_library("libnosuchthing.so.1")


@contextmanager
def page(body: bytes) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"data": [{"id": "org/name"}, {"id": "other"}]}', "org/name"),
        (b'{"data": []}', None),
        (b'{"data": {}}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"\xff", None),
    ],
)
def test_the_model_that_a_server_lists(body: bytes, model: str | None) -> None:
    with page(body) as url:
        assert served_model(url) == model


def test_nothing_that_listens_serves_nothing() -> None:
    assert served_model(f"http://127.0.0.1:{free_port()}") is None


def test_our_own_servers_are_those_that_live(tmp_path: Path) -> None:
    own = LaunchedBackend(
        name="paged",
        url="http://127.0.0.1:8123",
        pid=os.getpid(),
        pid_started_s=started_s(os.getpid()) or 0.0,
        kind="vllm",
        mode="paged",
        model="tiny",
        model_path="/models/tiny",
        served_model_name="tiny",
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=128,
        max_num_batched_tokens=None,
        kv_budget_bytes=2**24,
        kv_bytes_per_token=None,
        block_size=None,
        log="paged.log",
    )
    dead = replace(own, name="contiguous", url="http://127.0.0.1:8124", pid_started_s=1.5)
    write_state(tmp_path, StackState(mark="m", settings={}, backends=(own, dead)))
    assert local_stack(tmp_path) == LocalStack({8123: "paged"}, {"paged": "paged.log"})


def test_a_damaged_state_says_what_to_do(tmp_path: Path) -> None:
    assert local_stack(tmp_path).problem is None
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "state.json").write_text("{")
    assert "delete the file" in (local_stack(tmp_path).problem or "")


def test_programs_are_looked_for_on_the_given_path(tmp_path: Path) -> None:
    tool = tmp_path / "docker"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert this_machine({"PATH": str(tmp_path)}).which("docker") == str(tool)
    assert this_machine({"PATH": str(tmp_path / "none")}).which("docker") is None
