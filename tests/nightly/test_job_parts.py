from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import run as kvknee
from harness.errors import JournalError, NightlyError, StackError, UsageError
from harness.nightly.job import night as night_module
from harness.nightly.job import preflight
from harness.nightly.job.gpus import parse_gpus, read_gpus
from harness.nightly.job.load import longest_s
from harness.nightly.job.plan import Repeat, groups, load_command, plan_lines, with_repeats
from harness.nightly.job.prune import night_name, prune
from harness.nightly.job.times import Clockwork, keep_times, known_times
from harness.nightly.night_types import NightRun
from harness.nightly.suite import Keep
from tests.nightly.fake_night import IDLE, SUITE, TWO_RUNS, suite_of

DAY_S = 86_400.0
#: 2026-09-21 14:13:20 UTC
NOW_S = 1_790_000_000.0


def test_the_backends_and_the_seed_turn_with_the_repeats(tmp_path: Path) -> None:
    text = SUITE.replace('["paged"]', '["paged", "contiguous"]').replace(
        "repeats = 3", 'repeats = 3\noptions = { min-requests = "60" }'
    )
    run = suite_of(tmp_path, text).run[0]
    urls = {"paged": "http://h:1", "contiguous": "http://h:2"}
    for number, order in ((0, "paged=http://h:1,contiguous=http://h:2"), (1, None)):
        repeat = Repeat(run, number)
        command = load_command(repeat, urls, "python", Path("scenarios"), Path("runs"))
        found = dict(zip(command[7::2], command[8::2], strict=True))
        assert command[:6] == [
            "python",
            "-m",
            "locust",
            "-f",
            "scenarios/concurrency.py",
            "--headless",
        ]
        assert found == {
            "--backends": order or "contiguous=http://h:2,paged=http://h:1",
            "--levels": "4",
            "--prompt-tokens": "512",
            "--output-tokens": "128",
            "--seed": str(number),
            "--results-dir": "runs",
            "--prometheus-url": "none",
            "--min-requests": "60",
        }


def test_budgets_written_in_two_ways_share_a_stack(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, TWO_RUNS.replace('"8MiB"', '"16384KiB"'))
    assert [len(group.runs) for group in groups(suite)] == [2]
    assert [len(group.repeats) for group in groups(with_repeats(suite, 1))] == [2]


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """Five nights, a day apart, of two runs each; tonight is the newest."""
    for day in range(5):
        for i in range(2):
            make_run(tmp_path, night_name("s", NOW_S - day * DAY_S), f"{day}-{i}")
    return tmp_path


def make_run(nights: Path, night: str, name: str) -> Path:
    path = nights / night / "runs" / name
    (path / "scrapes").mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    (nights / night / "night.html").write_text("")
    return path


def kept(nights: Path) -> list[str]:
    return sorted(path.parent.name for path in nights.glob("*/runs/*/manifest.json"))


def pruned(nights: Path, keep: Keep) -> list[str]:
    return sorted(prune(nights, "s", night_name("s", NOW_S), NOW_S, keep))


def test_runs_are_pruned_by_age_and_by_count(nights: Path) -> None:
    # three days old is not older than three days
    assert pruned(nights, Keep(days=3, runs=100)) == ["4-0", "4-1"]
    # tonight's two count among the five
    assert len(pruned(nights, Keep(days=3, runs=5))) == 3
    # tonight's stay however few are kept
    assert len(pruned(nights, Keep(days=3, runs=1))) == 3
    assert kept(nights) == ["0-0", "0-1"]
    # the reports of every night stay
    assert len(list(nights.glob("*/night.html"))) == 5


def test_what_is_not_the_suites_own_stays(nights: Path, tmp_path: Path) -> None:
    old = night_name("s", NOW_S - 400 * DAY_S)
    elsewhere = make_run(tmp_path / "elsewhere", old, "mine")
    others = [
        make_run(nights, night_name("s-2", NOW_S - 400 * DAY_S), "other-suite"),
        make_run(nights, "s-20260101", "no-night"),
        make_run(nights, "s-20269999-000000", "no-date"),
        elsewhere,
    ]
    strange = nights / old / "runs" / "no-run"
    strange.mkdir(parents=True)
    (strange.parent / "link").symlink_to(elsewhere)
    (nights / night_name("s", NOW_S - 401 * DAY_S)).symlink_to(elsewhere.parents[1])
    pruned(nights, Keep(days=1, runs=1))
    assert all((path / "manifest.json").is_file() for path in others) and strange.is_dir()


def test_a_link_inside_a_run_leads_nowhere(nights: Path, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "file").write_text("")
    run = make_run(nights, night_name("s", NOW_S - 9 * DAY_S), "9-0")
    (run / "link").symlink_to(outside)
    assert "9-0" in pruned(nights, Keep(days=5, runs=100))
    assert (outside / "file").is_file() and not run.parent.exists()


def test_what_the_machine_is_like_is_told_with_what_helps() -> None:
    assert list(preflight.findings(IDLE)) == []
    busy = replace(
        IDLE, cpu_share=0.37, memory_free_bytes=2**30, disk_free_bytes=2**20, governor="powersave"
    )
    told = list(preflight.findings(busy))
    assert [text.partition(" ")[0] for text in told] == ["the", "only", "only", "the"]
    assert "37% of its CPU" in told[0] and "governor is powersave" in told[3]
    assert "CPU 1% in use, load 0.10 on 2 cores; 12 GiB of 16 GiB memory free" in preflight.facts(
        IDLE
    )


GPUS = """\
0, NVIDIA H200, 3, 512, 143771, 345, 1980
1, NVIDIA H200, 97, 120000, 143771, 1755, 1980
2, GH200 480GB, [N/A], [N/A], [N/A], 1000, [N/A]
"""


def test_gpus_are_told_with_what_is_in_use_and_their_clocks() -> None:
    machine = replace(IDLE, gpus=parse_gpus(GPUS))
    told = preflight.facts(machine)
    assert "GPU 0 NVIDIA H200: 3% in use, 512 MiB of 140.4 GiB in use, SM clock 345 of 1980" in told
    assert "GPU 2 GH200 480GB: SM clock 1000 MHz" in told
    busy = list(preflight.findings(machine))
    assert [text.partition(":")[0] for text in busy] == ["GPU 1 is not idle", "GPU 1"]
    assert "97% in use" in busy[0] and "117.2 GiB of 140.4 GiB" in busy[1]


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed'", "kill -9 $$"])
def test_a_gpu_tool_that_fails_shows_no_gpu(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpus() == ()


def test_a_load_is_given_the_time_that_its_options_ask_for(tmp_path: Path) -> None:
    short, long = (
        Repeat(suite_of(tmp_path, SUITE.replace("repeats = 3", options)).run[0], 0)
        for options in ("repeats = 3", 'repeats = 3\noptions = { min-level-seconds = "600" }')
    )
    # one cell of 600 s more
    assert longest_s(long) == longest_s(short) + 600.0 > 900.0


def test_too_few_repeats_are_said_before_the_night(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, SUITE.replace("repeats = 3", "repeats = 2"))
    notes = [line for line in plan_lines(suite, {}, starts=True) if line.startswith("note")]
    assert notes == ["note: short is repeated 2 times, and fewer than 3 give no verdict"]
    assert not any(
        line.startswith("note") for line in plan_lines(suite_of(tmp_path), {}, starts=True)
    )


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    found = preflight.look(tmp_path, over_s=0.01)
    assert found.cores == os.cpu_count() and 0 < found.memory_free_bytes <= found.memory_bytes


def test_what_is_left_comes_from_what_was(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, TWO_RUNS.replace('"8MiB"', '"16MiB"'))
    runs = [NightRun("short", 0, 0, 10.0, None), NightRun("tight", 0, 1, 99.0, None)]
    keep_times(tmp_path, "fake", runs)
    assert known_times(tmp_path, "fake") == {"short": 10.0}
    assert known_times(tmp_path, "other") == {}
    now = iter([0.0, 10.0, 30.0])
    clockwork = Clockwork(suite, {"short": 10.0, "tight": 20.0}, lambda: next(now))
    first, second, third, *_ = groups(suite)[0].repeats
    # three of 10 s and three of 20 s
    assert clockwork.left(first) == "about 2 min left"
    # short took the 10 s that were expected: 20 + 10 + 20 + 10 + 20 are left
    assert clockwork.left(second) == "about 80 s left"
    # and so did tight
    assert clockwork.left(third) == "about 60 s left"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = kvknee(["nightly", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_plan_is_shown_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "suite.toml").write_text(TWO_RUNS)
    results = tmp_path / "results"
    words = (str(tmp_path / "suite.toml"), "--plan", "--results-dir", str(results))
    code, out, _ = call(capsys, *words, "--repeats", "2")
    lines = out.splitlines()
    assert code == 0 and not results.exists()
    assert lines[0].startswith("suite fake: about ") and lines[0].endswith("(a guess)")
    assert lines[1] == "start paged with the model tiny, KV budget 16MiB"
    assert lines[3] == "  order: short-1 short-2"
    assert "  ttft_p50_s of short: paged 512+128 c4" in lines
    out = call(capsys, *words, "--backends", "paged=http://127.0.0.1:1")[1]
    assert "use paged with the model tiny" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("none.toml",), "none.toml: cannot be read"),
        (("suite.toml", "--backends", "contiguous=http://h:1"), "--backends: paged of the suite"),
        (("suite.toml", "--backends", "paged"), "expected name=url"),
        (("suite.toml", "--repeats", "0"), "--repeats"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)
    code, _, error = call(capsys, *words)
    assert code == 2 and expected in error and error.count("\n") == 1


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), ("sigterm", 3)])
def test_an_ended_job_has_its_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: object,
    code: int,
) -> None:
    def ended(*_: object) -> None:
        if raised == "sigterm":
            os.kill(os.getpid(), 15)
        raise KeyboardInterrupt

    monkeypatch.setattr(night_module, "run_night", ended)
    (tmp_path / "suite.toml").write_text(SUITE)
    found, _, error = call(capsys, str(tmp_path / "suite.toml"))
    assert found == code and "nothing of the night is stored" in error


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (ValueError("a bug"), 3),
        (OSError("no such device"), 3),
        (StackError("paged did not start"), 3),
        (JournalError("disk full"), 3),
        (NightlyError("another job runs"), 3),
        # what was asked was looked at before the night: 2 would wake nobody
        (UsageError("no such run"), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_job_that_breaks_is_never_taken_for_a_regression(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: Exception,
    code: int,
) -> None:
    def broken(*_: object) -> None:
        raise fault

    monkeypatch.setattr(night_module, "run_night", broken)
    (tmp_path / "suite.toml").write_text(SUITE)
    found, _, error = call(capsys, str(tmp_path / "suite.toml"))
    assert found == code and str(fault) in error
