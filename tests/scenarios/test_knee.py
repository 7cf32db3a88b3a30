"""``locust -f scenarios/knee.py`` end to end: search, attach, interruption, loss, bad input."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.analysis.summary_types import RunSummary
from harness.plan.search_types import Found
from harness.report.build import build_report
from harness.rundir import RunDir
from tests.scenarios.locust_process import (
    Ended,
    end,
    events_of,
    headless,
    run_dirs,
    started,
    wait_until,
)
from tests.scenarios.test_concurrency import closed_port
from tests.simulated.support import running
from tests.support.fake_openai import FakeOpenAi, serve

#: An answer of 8 tokens takes some 90 ms, so a level is decided in seconds.
MODELLED = (
    *("--mode", "modelled", "--step-base", "10ms", "--max-model-len", "256"),
    *("--block-size", "8", "--kv-bytes-per-token", "1024"),
)
#: three slots of 256 tokens x 1,024 B: a fourth request always waits
THREE_FIT = (*MODELLED, "--layout", "contiguous", "--kv-budget", str(3 * 256 * 1024))
#: two seats
TWO_SEATS = (*MODELLED, "--layout", "paged", "--num-blocks", "200", "--max-num-seqs", "2")
SHORT = (
    *("--prompt-tokens", "16", "--output-tokens", "8", "--prometheus-url", "none"),
    *("--max-concurrency", "16", "--max-level-seconds", "40", "--only-summary"),
)


#: behind the others, so that it counts
AT_MOST_4 = ("--max-concurrency", "4")


def only_run(folder: Path) -> RunDir:
    (run,) = run_dirs(folder)
    return run


def knee(*options: str, folder: Path) -> Ended:
    return headless(*SHORT, *options, folder=folder, scenario="knee")


def found_of(summary: RunSummary, backend: str, goal: str = "capacity") -> Found:
    (found,) = (f for f in summary.found if f.backend == backend and f.goal == goal)
    return found


@pytest.mark.slow
def test_it_finds_what_each_server_holds_and_says_how_to_start_it(tmp_path: Path) -> None:
    with running(*THREE_FIT) as memory, running(*TWO_SEATS) as seats:
        backends = ("--backends", f"memory={memory},seats={seats}")
        ended = knee(*backends, "--slo", "", *AT_MOST_4, folder=tmp_path)
    assert ended.code == 0, ended.text
    run = only_run(tmp_path)
    before = (run.path / "summary.json").read_bytes()
    # rebuilt by a process that has no memory of the search
    summary = build_report(run.path)
    assert (run.path / "summary.json").read_bytes() == before
    memory_found, seats_found = found_of(summary, "memory"), found_of(summary, "seats")
    assert (memory_found.status, memory_found.last_good, memory_found.first_bad) == ("found", 3, 4)
    assert (seats_found.status, seats_found.last_good, seats_found.first_bad) == ("found", 2, 3)
    assert (memory_found.cause, seats_found.cause) == ("kv_memory", "scheduler_limit")
    assert "next memory 16+8 c3: predicted 3" in ended.err
    assert "memory 16+8 c3: good, requests kept out in 0 % (" in ended.err
    assert "memory: start it with --max-num-seqs 3" in ended.out
    assert "seats: start it with --max-num-seqs 2" in ended.out
    # the backends take turns: both have a level before one has its second
    starts = [e.cell.backend for e in events_of(run) if e.kind == "level_start" and e.cell]
    assert set(starts[:2]) == {"memory", "seats"}
    report = (run.path / "report.md").read_text()
    assert "## Knee search" in report
    assert "memory holds 3 requests at once" in report
    assert "<h2>Knee search</h2>" in (run.path / "report.html").read_text()


@pytest.mark.slow
def test_a_server_without_metrics_has_the_knee_of_its_slo_alone(tmp_path: Path) -> None:
    # 20 + 7 x 5 ms, whatever the level: every request meets 2 s
    with running("--ttft", "20ms", "--itl", "5ms") as url:
        backends = ("--backends", f"plain={url}", "--max-concurrency", "2")
        ended = knee(*backends, "--slo", "e2e:2000", folder=tmp_path)
    assert ended.code == 0, ended.text
    summary = build_report(only_run(tmp_path).path)
    (found,) = summary.found
    assert (found.goal, found.status, found.last_good) == ("slo", "not_reached", 2)
    assert summary.verdicts[0].capacity.status == "no_verdict"


def level_has_records(folder: Path, ended: int) -> bool:
    """Whether so many levels are judged and another one has begun."""
    manifests = list((folder / "results").glob("*/manifest.json"))
    if not manifests:
        return False
    events = events_of(RunDir.open(manifests[0].parent))
    judged = len({e.cell for e in events if e.kind == "level_verdict"})
    begun = sum(e.kind == "level_start" for e in events)
    return judged >= ended and begun > judged


def test_ctrl_c_keeps_what_was_found_so_far(tmp_path: Path) -> None:
    # its facts predict more than may be asked, so 16 comes first, which is bad at once
    with running(*TWO_SEATS) as url:
        options = ("--headless", "--backends", f"m={url}", "--slo", "", *SHORT)
        with started(*options, folder=tmp_path, scenario="knee") as process:
            wait_until(lambda: level_has_records(tmp_path, ended=1))
            process.send_signal(signal.SIGINT)
            ended = end(process)
    assert ended.code == 1
    assert "Traceback" not in ended.text
    summary = build_report(only_run(tmp_path).path)
    assert summary.manifest.status == "interrupted"
    found = found_of(summary, "m")
    assert (found.status, found.last_good, found.first_bad) == ("budget", None, 16)
    assert "m holds an unknown number of requests at once: the search was cut short" in ended.out
    assert "(16 is bad)" in ended.out


@pytest.mark.slow
def test_a_server_that_dies_ends_the_search_with_what_it_has(tmp_path: Path) -> None:
    with running(*TWO_SEATS) as other, ExitStack() as dying:
        backends = f"other={other},dying={dying.enter_context(running(*THREE_FIT))}"
        options = ("--headless", "--backends", backends, "--slo", "", *SHORT)
        with started(*options, folder=tmp_path, scenario="knee") as process:
            wait_until(lambda: level_has_records(tmp_path, ended=1))
            dying.close()
            ended = end(process)
    assert ended.code == 1, ended.text
    assert "dying no longer answers" in ended.err
    summary = build_report(only_run(tmp_path).path)
    assert summary.manifest.status == "failed"
    assert found_of(summary, "other").first_bad == 16
    assert found_of(summary, "dying").status == "budget"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--attainment", "95"), "--attainment: '95' is not valid; expected a share"),
        (("--loop", "spiral"), "--loop: 'spiral' is not valid; expected closed or open"),
        (("--max-concurrency", "none"), "--max-concurrency: 'none' is not valid"),
        (("--budget-minutes", "-1"), "--budget-minutes: '-1' is not valid; expected minutes"),
        (("--slo", "fast"), "--slo: 'fast' is not valid"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    ended = headless(*options, folder=tmp_path, scenario="knee")
    assert ended.code == 2
    assert ended.last_error().startswith(words)
    assert run_dirs(tmp_path) == []


def test_a_server_that_is_not_there_and_one_that_tells_nothing(tmp_path: Path) -> None:
    gone = knee("--backends", f"a=http://127.0.0.1:{closed_port()}", folder=tmp_path)
    assert gone.code == 2
    assert "cannot be reached" in gone.last_error()
    with serve(FakeOpenAi(metrics=None)) as server:
        blind = knee("--backends", f"a={server.url}", "--slo", "", folder=tmp_path)
    assert blind.code == 2
    assert blind.last_error().startswith("--slo: none, and a has no metrics of its queue")
    shared = knee("--processes", "2", folder=tmp_path)
    assert shared.code == 2
    assert "measures from one process" in shared.err
