"""Limits of the machine that the load watches: open files and ports."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.errors import UsageError
from harness.load import open_files
from harness.load.open_files import SPARE_FILES, most_streams, require_open_files
from harness.load.ports import ephemeral_ports, time_wait
from harness.workload import OpenLoop
from tests.support.run_builder import manifest

SOCKSTAT = """\
sockets: used 200
TCP: inuse 6 orphan 0 tw 1234 alloc 10 mem 3
UDP: inuse 2 mem 1
"""


class Limits:
    """The system's limit on open files, for this process alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: self.now)
        monkeypatch.setattr(open_files.resource, "setrlimit", self.set)

    def set(self, _: int, limits: tuple[int, int]) -> None:
        self.now = limits


@pytest.mark.parametrize("streams", [10, 4096 - SPARE_FILES])
def test_the_soft_limit_is_raised_to_the_hard_one(
    monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    limits = Limits(monkeypatch, 1024, 4096)
    require_open_files(streams)
    assert limits.now == (4096, 4096)


def test_a_system_that_lets_no_limit_be_raised_is_taken_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Limits(monkeypatch, 1024, 4096)

    def refuse(_: int, __: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(open_files.resource, "setrlimit", refuse)
    require_open_files(1024 - SPARE_FILES)
    with pytest.raises(UsageError, match="may have 1024;"):
        require_open_files(1024 - SPARE_FILES + 1)


def test_the_streams_of_a_level_are_shared_by_its_processes() -> None:
    workload = manifest(levels=(1, 1000), min_requests=(1, 1)).workload
    # 1,000 over 3: one of them has 334
    assert most_streams(workload) == 1000
    assert most_streams(workload, 3) == 334


@pytest.mark.parametrize(("limit", "streams"), [(64, 64), (None, 0)])
def test_an_open_loop_holds_what_it_may_whatever_its_rate(limit: int | None, streams: int) -> None:
    workload = manifest(levels=(500,), min_requests=(1,)).workload
    open_loop = OpenLoop(max_concurrency=limit)
    assert most_streams(msgspec.structs.replace(workload, open_loop=open_loop)) == streams


def test_what_no_limit_allows_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, 1024, 4096)
    with pytest.raises(UsageError) as caught:
        require_open_files(5000)
    # 5,000 + 256
    assert str(caught.value).startswith(
        "5000 concurrent requests need 5256 open files and this process may have 4096; "
        "raise it first (ulimit -n 5256"
    )
    assert caught.value.exit_code == 2


def test_no_limit_at_all_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    Limits(monkeypatch, resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    require_open_files(10**6)


def test_a_real_process_may_raise_its_own_limit() -> None:
    code = (
        "import resource\n"
        "from harness.load.open_files import require_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (300, 600))\n"
        "require_open_files(100)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "(600, 600)", done.stderr


def test_ports_and_closed_connections_are_read_as_linux_states_them(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("32768\t60999\n")
    (tmp_path / "sockstat").write_text(SOCKSTAT)
    # 60,999 - 32,768 + 1
    assert ephemeral_ports(tmp_path / "range") == 28_232
    assert time_wait(tmp_path / "sockstat") == 1234


def test_a_system_that_does_not_state_them_leaves_them_absent(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("many\n")
    for path in (tmp_path / "odd", tmp_path / "none"):
        assert ephemeral_ports(path) is None
        assert time_wait(path) is None
