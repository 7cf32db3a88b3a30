"""Commands and reads that do not come back."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.doctor.bounded import all_within, run, within
from harness.doctor.facts import Ran, Unknown

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def is_alive(pid: int) -> bool:
    """An orphan that was killed is a zombie until whoever adopts it looks."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command_gives_its_code_and_both_outputs() -> None:
    text = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert run(python(text), ENVIRONMENT) == Ran(3, "out\n", "err\n")
    assert run(python("import os; os.write(1, b'\\xff')"), ENVIRONMENT) == Ran(0, "\ufffd", "")


def test_a_command_that_is_not_there() -> None:
    assert run(["/no/such/tool"], ENVIRONMENT) == Unknown(
        "tool cannot be started (No such file or directory)"
    )


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """The child inherits the pipe: waiting for the pipe's end would last as long as it does."""
    pids = tmp_path / "pids"
    hang = (
        "import os, subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c',"
        " 'import time; time.sleep(600)']); open(sys.argv[1], 'w').write("
        "f'{os.getpid()} {child.pid}'); time.sleep(600)"
    )
    answer = run([*python(hang), str(pids)], ENVIRONMENT, limit_s=5)
    name = Path(sys.executable).name
    assert answer == Unknown(f"{name} gave no answer in 5 s")
    parent, child = map(int, pids.read_text().split())
    assert not psutil.pid_exists(parent)
    deadline_s = time.monotonic() + 20
    while is_alive(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_command_cannot_ask_at_the_terminal() -> None:
    text = "import os, sys; print(os.getsid(0) == os.getpid(), sys.stdin.read() == '')"
    assert run(python(text), ENVIRONMENT) == Ran(0, "True True\n", "")


def test_reads_that_are_late_are_unknown_and_the_others_are_not() -> None:
    never = threading.Event()
    answers = all_within(0.2, {"late": never.wait, "good": lambda: 7, "none": lambda: None})
    never.set()
    assert answers == {"late": Unknown("no answer in 0.2 s"), "good": 7, "none": None}
    assert within(5, lambda: "x") == "x"


def test_a_fault_of_ours_is_not_taken_for_an_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)
