"""A stack started anew with other options, with stand-in servers in real processes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from harness.cli_stack import up
from harness.errors import StackError, UsageError
from harness.stack import local
from harness.stack.launches import Launch
from harness.stack.options import StackPlan, UpOptions
from harness.stack.restart import owned_servers, restart, up_command, up_options
from harness.stack.state import read_state
from tests.stack.conftest import Bench, Shown
from tests.stack.test_local import options


def test_the_same_stack_with_one_change(bench: Bench, progress: Shown) -> None:
    runtime = bench.runtime()
    asked = options(bench, kv_budget="32MiB", cache="dynamic", backends="contiguous")
    local.up(asked, progress, runtime)
    (server,) = owned_servers(bench.home)
    assert (server.backend.name, server.home) == ("contiguous", bench.home)
    restart(server, {"max_num_seqs": 18}, progress, runtime)
    before, after = server.settings, read_state(bench.home)
    assert after is not None
    assert after.settings == {**before, "max_num_seqs": 18}
    assert after.backends[0].max_num_seqs == 18
    assert after.backends[0].pid != server.backend.pid
    assert after.backends[0].url == server.backend.url
    local.down(bench.home, runtime)
    assert owned_servers(bench.home) == ()


def test_a_stack_that_does_not_start_with_the_change_is_started_as_it_was(
    bench: Bench, progress: Shown
) -> None:
    runtime = bench.runtime()
    local.up(options(bench, backends="paged"), progress, runtime)
    (server,) = owned_servers(bench.home)
    with pytest.raises(StackError):
        restart(server, {"max_num_seqs": 1}, progress, replace(runtime, launches=dying(bench)))
    state = read_state(bench.home)
    assert state is not None
    assert state.ready
    assert state.settings == server.settings
    local.down(bench.home, runtime)


def dying(bench: Bench) -> Callable[[StackPlan, Mapping[str, str]], Sequence[Launch]]:
    """Servers that die where they may take one request at a time."""

    def launches(plan: StackPlan, environment: Mapping[str, str]) -> Sequence[Launch]:
        bench.behaviours["paged"] = "dies" if plan.max_num_seqs == 1 else "healthy"
        return bench.launches(plan, environment)

    return launches


def test_settings_of_another_version_are_not_guessed(bench: Bench, progress: Shown) -> None:
    local.up(options(bench, backends="paged"), progress, bench.runtime())
    (server,) = owned_servers(bench.home)
    with pytest.raises(UsageError, match="started with colour"):
        up_options(replace(server, settings={**server.settings, "colour": 1}), {})
    local.down(bench.home, bench.runtime())


def test_the_command_that_brings_a_stack_back(bench: Bench, progress: Shown) -> None:
    asked = options(bench, backends="contiguous", kv_budget="32MiB", cache="static", compile=True)
    local.up(asked, progress, bench.runtime())
    (server,) = owned_servers(bench.home)
    local.down(bench.home, bench.runtime())
    program, name, *rest = shlex.split(up_command(server))
    assert (program, name) == ("kvknee", "up")
    assert "--max-num-seqs" not in rest, "the usual need not be typed"
    # read as the command line is
    read = up.make_context("up", list(rest)).params
    assert UpOptions(**read) == up_options(server, {})
