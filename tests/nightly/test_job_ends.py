"""What a job leaves behind when it is ended: by a signal, by a second job, or by kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import NightlyError
from harness.nightly.history import History
from harness.nightly.job.load import Loaded, LocustLoader
from harness.nightly.job.lock import Holder, held
from harness.nightly.job.plan import Repeat
from harness.stack.process import marked, start
from harness.terminated import Terminated, sigterm_raises
from tests.nightly.fake_night import Fakes, suite_of

HOLDER = Holder(os.getpid(), "fake", 1_790_000_000.0, "mark-of-this-test")
STAND_IN = ("-m", "tests.nightly.stand_in_load")


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_a_second_job_gets_one_line_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held(path, HOLDER) as before:
        assert before is None
        with pytest.raises(NightlyError) as error, held(path, HOLDER):
            pass
        assert f"(pid {os.getpid()}, suite fake, since 2026-09-21 14:13 UTC)" in str(error.value)
    with held(path, HOLDER) as before:
        assert before is None
    with pytest.raises(RuntimeError), held(path, HOLDER):
        raise RuntimeError
    with held(path, HOLDER) as before:
        # whoever did not end in order is looked after
        assert before == HOLDER


def test_two_jobs_with_one_home_are_kept_apart(fakes: Fakes, tmp_path: Path) -> None:
    with (
        held(tmp_path / "home" / "fleet" / "nightly" / "job.lock", HOLDER),
        pytest.raises(NightlyError, match="another nightly job holds"),
    ):
        fakes.night()


@contextlib.contextmanager
def signal_when(path: Path, number: signal.Signals) -> Iterator[None]:
    """The signal to this process, once that file is there."""

    def send() -> None:
        wait_for(path)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGTERM, Terminated),
        (signal.SIGHUP, Terminated),
        (signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_a_signal_ends_the_load_tidily_and_stores_nothing(
    fakes: Fakes, tmp_path: Path, number: signal.Signals, error: type[BaseException]
) -> None:
    def make(runs: Path) -> LocustLoader:
        return LocustLoader(
            runs,
            runs.parent / "logs",
            "mark-of-a-stand-in",
            tmp_path,
            command=lambda *_: [sys.executable, *STAND_IN, str(tmp_path)],
        )

    before = signal.getsignal(signal.SIGTERM)
    # these tests may be run by nohup, whose SIGHUP is ignored, and stays so
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with signal_when(tmp_path / "begun", number), sigterm_raises(), pytest.raises(error):
            fakes.night(make=make)
    finally:
        assert signal.signal(signal.SIGHUP, hangup) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before
    assert (tmp_path / "tidy").exists() and not marked("mark-of-a-stand-in")
    assert fakes.servers.did[-1] == "stop"
    with History.open(fakes.ask().history) as history:
        assert history.runs() == ()
    (night,) = (tmp_path / "results" / "nightly").glob("fake-*/night.json")
    said = json.loads(night.read_bytes())
    assert said["exit_code"] == 3 and said["events"][-1]["kind"] == "interrupted"
    # the lock is free
    assert fakes.night().exit_code == 2


def test_what_a_killed_job_left_running_is_ended_by_the_next(fakes: Fakes, tmp_path: Path) -> None:
    command = [sys.executable, *STAND_IN, str(tmp_path)]
    left = start(command, dict(os.environ), "mark-of-a-killed-job", tmp_path / "log")
    wait_for(tmp_path / "begun")
    lock = tmp_path / "results" / "nightly" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text('{"pid": 1, "suite": "fake", "at_wall_s": 1.0, "mark": "mark-of-a-killed-job"}')
    fakes.night()
    assert not marked("mark-of-a-killed-job")
    os.waitpid(left.pid, 0)


def test_a_load_that_says_what_is_wrong_is_quoted(tmp_path: Path) -> None:
    runs, logs = tmp_path / "runs", tmp_path / "logs"
    for folder in (runs, logs):
        folder.mkdir()
    program = "import sys; print('error: --levels: no'); sys.exit(2)"
    loader = LocustLoader(
        runs, logs, "m", tmp_path, command=lambda *_: [sys.executable, "-c", program]
    )
    repeat = Repeat(suite_of(tmp_path).run[0], 0)
    found = loader(repeat, {}, again=False)
    assert (found.exit_code, found.folder, found.said) == (2, None, "error: --levels: no")
    assert isinstance(found, Loaded) and (logs / "short-1.log").is_file()


def test_kill_9_at_any_moment_leaves_no_half_night(fakes: Fakes, tmp_path: Path) -> None:
    draw = random.Random(9)
    command = [sys.executable, "-m", "tests.nightly.fake_night", str(tmp_path)]
    path, stored = fakes.ask().history, 0
    for _ in range(6):
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        # a moment of its night, or its end
        select.select([child.stdout], [], [], draw.uniform(0.0, 3.0))
        child.kill()
        child.wait()
        child.stdout.close()
        with History.open(path) as history:
            runs = history.runs()
            counts = {len(history.figures(run.run_id)) for run in runs}
            assert len(counts) <= 1 and 0 not in counts
            assert all(history.verdicts(run.run_id) for run in runs)
            assert list(history.rows("PRAGMA integrity_check")) == [("ok",)]
        assert len(runs) - stored in (0, 1)
        stored = len(runs)
    # and the next job works on the same folder
    done = subprocess.run(command, capture_output=True, timeout=120, text=True)
    assert done.stdout.endswith("done\n"), done.stderr
    with History.open(path) as history:
        assert len(history.runs()) == stored + 1
