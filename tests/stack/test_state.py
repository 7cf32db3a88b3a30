"""The state file, and the lock that guards it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.stack.process import started_s
from harness.stack.state import (
    LaunchedBackend,
    StackState,
    home_folder,
    locked,
    read_state,
    remove_state,
    running_backends,
    state_path,
    write_state,
)


def backend(pid: int, pid_started_s: float) -> LaunchedBackend:
    return LaunchedBackend(
        name="paged",
        url="http://127.0.0.1:8000",
        pid=pid,
        pid_started_s=pid_started_s,
        kind="vllm",
        mode="paged",
        model="tiny",
        model_path="/models/tiny",
        served_model_name="tiny",
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=128,
        max_num_batched_tokens=2048,
        kv_budget_bytes=2**24,
        kv_bytes_per_token=1024,
        block_size=128,
        log="/logs/paged.log",
    )


def test_a_state_is_read_as_it_was_written_and_leaves_no_draft(tmp_path: Path) -> None:
    state = StackState(mark="m", settings={"model": "tiny"}, ready=True, backends=(backend(1, 2),))
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert [path.name for path in state_path(tmp_path).parent.iterdir()] == ["state.json"]
    remove_state(tmp_path)
    remove_state(tmp_path)
    assert read_state(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"mark": 3}',
        b"[]",
        b'"\xff"',
        100_000 * b"[",
        # an empty mark would stand for processes without one
        b'{"mark":"","settings":{}}',
        b'{"mark":"m","settings":{},"schema_version":99}',
        b'{"mark":"m","settings":[]}',
    ],
)
def test_a_damaged_state_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    write_state(tmp_path, StackState(mark="m", settings={}))
    state_path(tmp_path).write_bytes(content)
    with pytest.raises(UsageError, match=r"state\.json: not readable as the stack's state"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", -1),
        ("pid", 0),
        ("pid", 2**31),
        ("url", "://["),
        ("url", "http://[:80"),
        ("url", "http://h"),
        ("url", "http://h:99999"),
        ("kv_budget_bytes", -1),
        ("threads", "many"),
    ],
)
def test_a_backend_that_cannot_be_is_one_clear_line(
    tmp_path: Path, field: str, value: object
) -> None:
    write_state(tmp_path, StackState(mark="m", settings={}, backends=(backend(1, 2),)))
    path = state_path(tmp_path)
    state = json.loads(path.read_bytes())
    state["backends"][0][field] = value
    path.write_text(json.dumps(state))
    with pytest.raises(UsageError, match=r"state\.json: not readable .*delete the file") as caught:
        read_state(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_state_that_may_not_be_read_is_one_clear_line(tmp_path: Path) -> None:
    state_path(tmp_path).mkdir(parents=True)
    with pytest.raises(UsageError, match=r"state\.json: not readable .*Is a directory"):
        read_state(tmp_path)


def test_only_backends_whose_process_lives_count(tmp_path: Path) -> None:
    now = started_s(os.getpid())
    assert now is not None
    alive, recycled = backend(os.getpid(), now), backend(os.getpid(), now - 5.0)
    write_state(tmp_path, StackState(mark="m", settings={}, backends=(alive, recycled)))
    assert running_backends(tmp_path) == (alive,)
    assert running_backends(tmp_path / "no stack here") == ()


def test_a_second_command_is_told_who_is_at_it(tmp_path: Path) -> None:
    told = rf"another kvknee command \(pid {os.getpid()}\)"
    with locked(tmp_path), pytest.raises(UsageError, match=told), locked(tmp_path):
        raise AssertionError("two commands hold the lock")
    with locked(tmp_path):
        pass


def test_a_home_that_cannot_be_made_names_the_option(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match=r"--home: .*file cannot be written"), locked(file):
        raise AssertionError("locked inside a file")
    with pytest.raises(UsageError, match=r"--home: .*file cannot be written"):
        write_state(file, StackState(mark="m", settings={}))


def test_home_comes_from_the_environment() -> None:
    assert home_folder({"KVKNEE_HOME": "/elsewhere"}) == Path("/elsewhere")
    assert home_folder({"KVKNEE_HOME": ""}) == Path(".kvknee")
    assert home_folder({}) == Path(".kvknee")
