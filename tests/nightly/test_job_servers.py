"""The servers of a night, with stand-ins in real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness.errors import NightlyError, StackError
from harness.nightly.job.plan import Group, groups
from harness.nightly.job.servers import (
    GivenServers,
    LocalServers,
    own_home,
)
from harness.stack import local
from harness.stack.health import answers
from harness.stack.options import UpOptions
from harness.stack.state import fleet_backends, read_state, running_backends
from tests.nightly.fake_night import SUITE, suite_of
from tests.stack.conftest import Bench, Shown, bench, progress, until

__all__ = ["bench", "progress"]


@pytest.fixture
def group(tmp_path: Path) -> Group:
    text = SUITE.replace('["paged"]', '["paged", "contiguous"]')
    return groups(suite_of(tmp_path, text))[0]


def kvknee_up(bench: Bench, budget: str) -> None:
    ports = {f"{name}_port": port for name, port in bench.ports.items()}
    options = UpOptions(home=bench.home, kv_budget=budget, **ports)  # type: ignore[arg-type]
    local.up(options, Shown(), bench.runtime())


def test_a_stack_is_started_for_the_night_and_none_is_left(
    bench: Bench, progress: Shown, group: Group
) -> None:
    servers = LocalServers(bench.home, progress, bench.runtime())
    urls = servers.start(group)
    assert list(urls) == ["paged", "contiguous"] and servers.dead() == () and servers.restartable
    # a home of its own, the models of the user's
    assert running_backends(bench.home) == ()
    assert {b.url for b in fleet_backends(bench.home)} == set(urls.values())
    models = own_home(bench.home) / "models"
    assert models.resolve() == (bench.home / "models").resolve()
    servers.stop()
    assert not any(answers(url) for url in urls.values())
    assert read_state(own_home(bench.home)) is None


def test_a_dead_server_is_seen_and_its_stack_started_anew(
    bench: Bench, progress: Shown, group: Group
) -> None:
    servers = LocalServers(bench.home, progress, bench.runtime())
    before = servers.start(group)
    victim = next(b for b in fleet_backends(bench.home) if b.name == "paged")
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: not victim.is_running())
    assert servers.dead() == ("paged",)
    after = servers.restart()
    assert servers.dead() == () and list(after) == list(before)
    servers.stop()
    assert fleet_backends(bench.home) == ()


def test_what_a_killed_job_left_is_taken_down(bench: Bench, progress: Shown, group: Group) -> None:
    urls = LocalServers(bench.home, progress, bench.runtime()).start(group)
    later = LocalServers(bench.home, progress, bench.runtime())
    assert later.clear() == ("paged", "contiguous")
    assert not any(answers(url) for url in urls.values())
    assert later.clear() == ()


def test_the_users_own_stack_is_used_when_it_is_as_asked(
    bench: Bench, progress: Shown, group: Group
) -> None:
    kvknee_up(bench, "16384KiB")
    servers = LocalServers(bench.home, progress, bench.runtime())
    urls = servers.start(group)
    assert set(urls.values()) == {b.url for b in running_backends(bench.home)}
    assert servers.dead() == () and not servers.restartable
    servers.stop()
    assert all(answers(url) for url in urls.values())
    assert fleet_backends(bench.home) == ()


def test_a_stack_with_other_settings_is_neither_used_nor_stopped(
    bench: Bench, progress: Shown, group: Group
) -> None:
    kvknee_up(bench, "8MiB")
    servers = LocalServers(bench.home, progress, bench.runtime())
    with pytest.raises(NightlyError, match=r"kv_budget=8MiB \(the suite asks for 16MiB\)"):
        servers.start(group)
    urls = {b.name: b.url for b in running_backends(bench.home)}
    assert all(answers(url) for url in urls.values())
    # as they are, when they are named
    given = GivenServers(urls)
    assert given.start(group) == urls and given.dead() == () and not given.restartable
    given.stop()
    assert all(answers(url) for url in urls.values())
    with pytest.raises(StackError):
        given.restart()


def test_what_cannot_be_started_is_said(bench: Bench, progress: Shown, group: Group) -> None:
    servers = LocalServers(bench.home, progress, bench.runtime())
    with pytest.raises(NightlyError, match="tgi cannot be started here; name running servers"):
        servers.start(Group("tiny", None, (replace(group.runs[0], backends=("tgi",)),)))
    bench.behaviours["paged"] = "dies"
    with pytest.raises(StackError, match="paged"):
        servers.start(group)
    assert fleet_backends(bench.home) == ()
