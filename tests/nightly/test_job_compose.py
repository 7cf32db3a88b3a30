"""Servers of a night from Compose files, with a program in Docker's place that notes its calls.

Real containers: ``tests/compose/test_stack.py``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli_stack import down
from harness.errors import NightlyError, StackError, UsageError
from harness.nightly.history import History
from harness.nightly.job.compose import ComposeServers
from harness.nightly.job.night import Outside
from harness.nightly.job.plan import Group, groups, plan_lines
from harness.nightly.job.servers import LocalServers, own_home
from harness.stack.containers import project_name
from harness.stack.process import marked
from tests.nightly.fake_night import SUITE, Fakes, Quiet, suite_of
from tests.stack.conftest import until

FILES = ("/stack/docker-compose.yml", "/stack/docker-compose.cpu.yml")
#: notes the call, then does what ``plan.json`` says of the subcommand
DOCKER = """#!{python}
import json, os, pathlib, sys, time
folder = pathlib.Path(__file__).parent
line = sys.argv[1:]
named = [part for part in line if part in ("up", "down")][0]
names = ("MODEL", "KV_BUDGET_BYTES", "PAGED_PORT", "CONTIGUOUS_PORT")
with (folder / "calls").open("a") as calls:
    settings = {{name: os.environ.get(name) for name in names}}
    calls.write(json.dumps({{"line": line, "what": named, "settings": settings}}) + "\\n")
plan = json.loads((folder / "plan.json").read_text()).get(named, {{}})
print(plan.get("out", ""))
print(plan.get("err", ""), file=sys.stderr, flush=True)
time.sleep(plan.get("sleep", 0))
sys.exit(plan.get("code", 0))
"""


class FakeDocker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "docker"
        program.write_text(DOCKER.format(python=sys.executable))
        program.chmod(0o755)
        self.does({})

    def does(self, plan: Mapping[str, Mapping[str, Any]]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(plan))

    @property
    def calls(self) -> list[dict[str, Any]]:
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def did(self) -> list[str]:
        return [call["what"] for call in self.calls]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDocker:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("MODEL", "KV_BUDGET_BYTES", "PAGED_PORT", "CONTIGUOUS_PORT"):
        monkeypatch.delenv(name, raising=False)
    return FakeDocker(folder)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    text = SUITE.replace('["paged"]', '["contiguous", "paged"]')
    return groups(suite_of(tmp_path, text))[0]


def servers_of(tmp_path: Path, gone: set[str] | None = None) -> ComposeServers:
    down = gone if gone is not None else set()
    return ComposeServers(FILES, tmp_path / "home", Quiet(), lambda url: url not in down)


def interrupted_when(condition: Callable[[], bool]) -> threading.Thread:
    def interrupt() -> None:
        until(condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_the_group_is_what_compose_is_asked_for(
    docker: FakeDocker, tmp_path: Path, group: Group
) -> None:
    servers = servers_of(tmp_path)
    assert not servers.restartable
    urls = servers.start(group)
    (call,) = docker.calls
    project = project_name(tmp_path / "home")
    assert call["line"] == [
        *("compose", "--project-name", project),
        *("--file", FILES[0], "--file", FILES[1]),
        *("up", "--detach", "--build", "--wait", "contiguous", "paged"),
    ]
    settings = call["settings"]
    assert settings["MODEL"] == "tiny" and settings["KV_BUDGET_BYTES"] == str(16 * 2**20)
    assert urls == {
        "contiguous": f"http://127.0.0.1:{settings['CONTIGUOUS_PORT']}",
        "paged": f"http://127.0.0.1:{settings['PAGED_PORT']}",
    }
    assert settings["PAGED_PORT"] != settings["CONTIGUOUS_PORT"]
    assert servers.dead() == () and servers.restartable
    servers.stop()
    assert docker.did == ["up", "down"] and not servers.restartable
    # the models and compiled kernels of the next night
    assert "--volumes" not in docker.calls[-1]["line"]
    # a file with ${MODEL:?} is read for ``down``, too
    assert docker.calls[-1]["settings"] == settings
    servers.stop()
    assert docker.did == ["up", "down"]


def test_the_files_own_budget_is_left_where_the_suite_names_none(
    docker: FakeDocker, tmp_path: Path
) -> None:
    group = groups(suite_of(tmp_path, SUITE.replace('kv_budget = "16MiB"', "")))[0]
    assert list(servers_of(tmp_path).start(group)) == ["paged"]
    assert docker.calls[0]["settings"]["KV_BUDGET_BYTES"] is None


def test_a_dead_server_is_seen_and_all_are_started_anew(
    docker: FakeDocker, tmp_path: Path, group: Group
) -> None:
    gone: set[str] = set()
    servers = servers_of(tmp_path, gone)
    gone.add(servers.start(group)["paged"])
    assert servers.dead() == ("paged",)
    gone.clear()
    assert list(servers.restart()) == ["contiguous", "paged"]
    assert docker.did == ["up", "down", "up"] and servers.dead() == ()


def test_a_stack_that_does_not_start_is_removed_and_compose_says_why(
    docker: FakeDocker, tmp_path: Path, group: Group
) -> None:
    docker.does(
        {
            "up": {"code": 17, "err": "\x1b[31mcontainer kvknee-paged-1 is unhealthy"},
            "down": {"code": 1, "err": "the daemon is gone"},
        }
    )
    servers = servers_of(tmp_path)
    with pytest.raises(StackError) as caught:
        servers.start(group)
    said = str(caught.value)
    assert "docker compose up ended with exit code 17" in said and "is unhealthy" in said
    assert said.isprintable() and str(tmp_path / "home" / "compose.log") in said
    assert docker.did == ["up", "down"] and servers.dead() == ("contiguous", "paged")


def test_without_docker_the_job_cannot_be_done(
    tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    servers = servers_of(tmp_path)
    # nothing is left up, so nothing is asked of a Docker that is not there
    assert servers.clear() == ()
    with pytest.raises(NightlyError, match=r"has \[compose\]: docker is not installed"):
        servers.start(group)
    assert servers.clear() == ()


@pytest.mark.parametrize("later", ["compose", "local", "kvknee down"])
def test_what_a_killed_job_left_is_removed_whatever_comes_next(
    later: str, docker: FakeDocker, tmp_path: Path, group: Group
) -> None:
    home = own_home(tmp_path / "home")
    ComposeServers(FILES, home, Quiet()).start(group)
    if later == "kvknee down":
        done = CliRunner().invoke(down, ["--home", str(home)])
        assert done.exit_code == 0 and "stopped contiguous and paged" in done.output
    else:
        next_one = (
            ComposeServers(FILES, home, Quiet())
            if later == "compose"
            else LocalServers(tmp_path / "home", Quiet())
        )
        assert next_one.clear() == ("contiguous", "paged")
        assert next_one.clear() == ()
    assert docker.did == ["up", "down"]


def test_containers_that_cannot_be_removed_are_tried_again_by_the_next(
    docker: FakeDocker, tmp_path: Path, group: Group
) -> None:
    servers = servers_of(tmp_path)
    servers.start(group)
    docker.does({"down": {"code": 1, "err": "permission denied"}})
    with pytest.raises(StackError, match=r"down ended with exit code 1 \(permission denied\)"):
        servers.stop()
    docker.does({})
    assert servers_of(tmp_path).clear() == ("contiguous", "paged")


def test_an_interrupted_stop_is_made_once_more(
    docker: FakeDocker, tmp_path: Path, group: Group
) -> None:
    servers = servers_of(tmp_path)
    servers.start(group)
    docker.does({"down": {"sleep": 2}})
    thread = interrupted_when(lambda: docker.did == ["up", "down"])
    with pytest.raises(KeyboardInterrupt):
        servers.stop()
    thread.join()
    assert docker.did == ["up", "down", "down"]
    assert servers.clear() == ()


def test_a_state_that_cannot_be_read_names_the_project(docker: FakeDocker, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "compose.json").write_text("{")
    with pytest.raises(UsageError, match=project_name(tmp_path / "home")):
        servers_of(tmp_path).clear()


def test_an_interrupted_start_ends_compose_and_its_containers(
    docker: FakeDocker, tmp_path: Path, group: Group
) -> None:
    docker.does({"up": {"sleep": 600}})
    servers = servers_of(tmp_path)
    thread = interrupted_when(lambda: docker.did == ["up"])
    with pytest.raises(KeyboardInterrupt):
        servers.start(group)
    thread.join()
    assert docker.did == ["up", "down"]
    assert marked(project_name(tmp_path / "home")) == []


def test_the_suite_chooses_and_its_nights_are_a_setup_of_their_own(
    docker: FakeDocker, tmp_path: Path
) -> None:
    files = [tmp_path / "one.yml", tmp_path / "two.yml"]
    for file in files:
        file.write_text("services: {}\n")
    suite = suite_of(tmp_path, SUITE + '\n[compose]\nfiles = ["one.yml", "two.yml"]\n')
    assert suite.compose is not None and suite.compose.files == tuple(map(str, files))
    assert "start paged with the model tiny, KV budget 16MiB, with docker compose" in list(
        plan_lines(suite, {}, starts=True)
    )
    fakes = Fakes(tmp_path)
    assert isinstance(Outside().servers(fakes.ask(suite), Quiet()), ComposeServers)
    nights = [fakes.night(suite), fakes.night(suite_of(tmp_path))]
    with History.open(fakes.ask().history) as history:
        kinds = [
            history.setups(night.night_id)["short/paged"].get("asked.servers") for night in nights
        ]
    assert kinds == ["compose", None]
    assert any("asked.servers" in text for text in nights[1].setup_changes)
