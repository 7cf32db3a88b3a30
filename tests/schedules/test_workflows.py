from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.schedules.commands import check_command, make_targets

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: what somebody who opens a pull request writes
UNTRUSTED = re.compile(r"\$\{\{[^}]*(github\.event|github\.head_ref|inputs\.)[^}]*\}\}")


def read(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def jobs(path: Path) -> list[dict[str, Any]]:
    return list(read(path)["jobs"].values())


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path) for step in job["steps"]]


def events(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true
    found = read(path)[True]
    assert isinstance(found, dict)
    return found


def test_there_are_two() -> None:
    assert [path.stem for path in WORKFLOWS] == ["checks", "nightly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_least_privilege(path: Path) -> None:
    assert read(path)["permissions"] == {"contents": "read"}
    assert read(path)["concurrency"]["group"]
    for job in jobs(path):
        assert "permissions" not in job
        assert 0 < job["timeout-minutes"] <= 360
    checkouts = [s for s in steps(path) if s.get("uses", "").startswith("actions/checkout@")]
    assert checkouts and all(s["with"]["persist-credentials"] is False for s in checkouts)
    assert "secrets." not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_actions_are_pinned_by_commit_with_their_version_beside(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert len(used) == sum("uses" in step for step in steps(path))
    for text in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", text), text


def test_both_workflows_pin_the_same_commit() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for name, commit in re.findall(r"uses: (\S+)@(\S+)", path.read_text()):
            pins.setdefault(name, set()).add(commit)
    assert {name for name, commits in pins.items() if len(commits) > 1} == set()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_nothing_untrusted_is_run(path: Path) -> None:
    for step in steps(path):
        assert not UNTRUSTED.search(step.get("run", ""))
        # not even as text of an expression: values come as variables
        assert "${{" not in step.get("run", "")
    for event in ("pull_request_target", "workflow_run", "issue_comment"):
        assert event not in events(path)


def test_a_pull_request_never_reaches_the_own_machine() -> None:
    nightly = ROOT / ".github" / "workflows" / "nightly.yml"
    assert set(events(nightly)) == {"schedule", "workflow_dispatch"}
    assert all(job["runs-on"] == ["self-hosted", "gpu"] for job in jobs(nightly))
    checks = ROOT / ".github" / "workflows" / "checks.yml"
    assert all("self-hosted" not in job["runs-on"] for job in jobs(checks))


def test_one_night_at_a_time_and_none_is_cut_short() -> None:
    nightly = read(ROOT / ".github" / "workflows" / "nightly.yml")
    assert nightly["concurrency"] == {"group": "nightly", "cancel-in-progress": False}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_what_is_run_exists(path: Path) -> None:
    runs = [step["run"] for step in steps(path) if "run" in step]
    assert runs
    for line in runs:
        words = [w for w in shlex.split(line) if not re.match(r"[A-Z_]+=", w)]
        if words[0] == "make":
            assert set(words[1:]) <= make_targets()
        elif words[0] == "bash":
            assert (ROOT / words[1]).is_file()
        elif words[0].endswith("/kvknee"):
            check_command(words[1:])
        else:
            assert words[0].endswith("/python"), line


def test_folders_of_the_fast_tests_exist() -> None:
    folders = re.findall(r"^FAST := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(folders) == 1
    for name in folders[0].split():
        assert (ROOT / "tests" / name).is_dir()
