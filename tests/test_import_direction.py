"""Which part may import which: the shape of the program, checked on its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HARNESS = ROOT / "harness"

#: No I/O, no clock, no event loop.
IMPURE = {
    *("asyncio", "gevent", "greenlet", "httptools", "httpx", "locust", "multiprocessing"),
    *("os", "psutil", "requests", "select", "selectors", "shutil", "signal", "socket", "ssl"),
    *("subprocess", "tempfile", "threading", "time", "urllib.request"),
}
#: The one place where the load calls the report, at the end of a run.
END_OF_RUN = HARNESS / "load" / "run.py"


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (HARNESS / folder).rglob("*.py")]
    assert found
    return sorted(found)


def imports(path: Path, *, with_types: bool = True) -> Iterator[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = set() if with_types else set(type_checking_only(tree))
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def type_checking_only(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                yield from ast.walk(child)


def starts_with(name: str, part: str) -> bool:
    return name == part or name.startswith(part + ".")


def forbidden(path: Path, parts: set[str], *, with_types: bool = True) -> list[str]:
    names = imports(path, with_types=with_types)
    return sorted({name for name in names for part in parts if starts_with(name, part)})


def reached(path: Path) -> set[Path]:
    """The file and all of ours that it imports, directly or not."""
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for name in imports(current, with_types=False):
            if starts_with(name, "harness"):
                place = ROOT / Path(*name.split("."))
                waiting += [
                    p for p in (place.with_suffix(".py"), place / "__init__.py") if p.is_file()
                ]
    return seen


PURE = [
    *sources("kv", "plan"),
    *(HARNESS / "load" / name for name in ("answer.py", "level.py", "sse.py", "timeline.py")),
    *(HARNESS / "calibrate" / name for name in ("result.py", "settings.py", "truth.py")),
    *(HARNESS / "load" / "distributed" / name for name in ("intake.py", "messages.py")),
    *(HARNESS / "equivalence" / name for name in ("answers.py", "compare.py")),
    *(HARNESS / "nightly" / f"{name}.py" for name in ("gate", "gate_types", "setup", "sight")),
    HARNESS / "nightly" / "night_types.py",
]

#: what compares nights: all of nightly but the job and what shows a night
JUDGING = [p for p in sources("nightly") if p.parent == HARNESS / "nightly"]


@pytest.mark.parametrize("path", PURE, ids=lambda p: str(p.relative_to(HARNESS)))
def test_the_pure_core_reaches_no_io_no_clock_no_locust(path: Path) -> None:
    """Not even through another file."""
    for inner in reached(path):
        assert forbidden(inner, IMPURE) == [], inner


@pytest.mark.parametrize("path", sources("analysis"), ids=lambda p: p.name)
def test_analysis_does_no_io_and_is_no_part_of_the_load(path: Path) -> None:
    assert forbidden(path, IMPURE | {"harness.load", "harness.report", "harness.stack"}) == []


@pytest.mark.parametrize("path", sources("compare"), ids=lambda p: p.name)
def test_a_comparison_of_runs_does_no_io_and_shows_nothing(path: Path) -> None:
    outer = {"harness.load", "harness.report", "harness.rundir", "harness.stack"}
    assert forbidden(path, IMPURE | outer) == []


@pytest.mark.parametrize("path", sources("load"), ids=lambda p: p.name)
def test_the_load_knows_nothing_of_analysis_and_report(path: Path) -> None:
    found = forbidden(path, {"harness.analysis", "harness.report"}, with_types=False)
    if path == END_OF_RUN:
        allowed = {"harness.report.build", "harness.report.terminal"}
        found = [name for name in found if not any(starts_with(name, a) for a in allowed)]
    assert found == []


@pytest.mark.parametrize("path", sources("calibrate"), ids=lambda p: p.name)
def test_a_calibration_needs_the_load_and_no_analysis(path: Path) -> None:
    assert forbidden(path, {"harness.analysis", "harness.report", "locust", "servers"}) == []


@pytest.mark.parametrize("path", sources("modes"), ids=lambda p: p.name)
def test_a_comparison_of_modes_runs_its_loads_as_processes(path: Path) -> None:
    # what a running server says of itself is asked as the load asks it
    load = set() if path.name == "running.py" else {"harness.load"}
    assert forbidden(path, {"gevent", "locust", "servers"} | load) == []


@pytest.mark.parametrize("path", sources("equivalence"), ids=lambda p: p.name)
def test_a_comparison_of_servers_needs_no_run(path: Path) -> None:
    assert forbidden(path, {"harness.analysis", "harness.report", "locust", "servers"}) == []


@pytest.mark.parametrize("path", JUDGING, ids=lambda p: p.name)
def test_nights_are_judged_from_summaries_alone(path: Path) -> None:
    others = {"harness.load", "harness.report", "harness.stack", "locust", "gevent"}
    assert forbidden(path, others | {"harness.nightly.job", "harness.nightly.outputs"}) == []


@pytest.mark.parametrize("path", sources("nightly/job"), ids=lambda p: p.name)
def test_the_nightly_job_runs_its_loads_as_processes(path: Path) -> None:
    assert forbidden(path, {"harness.load", "harness.cli", "gevent", "locust", "servers"}) == []


@pytest.mark.parametrize("path", sources("nightly/outputs"), ids=lambda p: p.name)
def test_what_a_night_leaves_is_made_from_the_night(path: Path) -> None:
    others = {"harness.load", "harness.stack", "harness.nightly.job", "locust", "gevent"}
    assert forbidden(path, others) == []


@pytest.mark.parametrize("path", sources("observe", "report"), ids=lambda p: p.name)
def test_observation_and_report_know_nothing_of_the_load(path: Path) -> None:
    assert forbidden(path, {"harness.load", "locust", "gevent"}) == []


@pytest.mark.parametrize("path", sources("search"), ids=lambda p: p.name)
def test_a_search_joins_load_and_analysis_and_makes_no_report(path: Path) -> None:
    assert forbidden(path, {"harness.report", "harness.cli", "locust", "servers"}) == []


def test_nothing_but_a_scenario_needs_the_search() -> None:
    users = {p for p in HARNESS.rglob("*.py") if forbidden(p, {"harness.search"})}
    assert {path.parent.name for path in users} == {"search"}


def test_only_the_ends_that_meet_locust_import_it() -> None:
    users = {path for path in HARNESS.rglob("*.py") if forbidden(path, {"locust"})}
    load = HARNESS / "load"
    ends = ("dispatch", "fleet", "master", "worker")
    assert users == {
        load / "locust_scenario.py",
        load / "locust_parts.py",
        *(load / "distributed" / f"{name}.py" for name in ends),
    }


def test_nothing_of_the_harness_needs_torch() -> None:
    heavy = {"torch", "transformers", "vllm", "hqq"}
    lazily = {HARNESS / "stack" / "models.py"}
    for path in HARNESS.rglob("*.py"):
        if path not in lazily:
            assert forbidden(path, heavy) == [], path
