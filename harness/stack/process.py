"""Server processes that outlive the command which starts them, and how they are stopped.

Every server is started in a process group of its own with a mark in its environment, which all
its descendants inherit. The mark, not a process id, tells what is ours: a recycled id
carries none, and a child that its dead parent left behind still does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.errors import StackError

MARK = "KVKNEE_STACK_MARK"
#: how long processes that were killed get to disappear
_KILL_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Started:
    """A process that this command started."""

    pid: int
    #: identifies the process together with its id: see ``started_s``
    started_s: float


def start(command: Sequence[str], environment: Mapping[str, str], mark: str, log: Path) -> Started:
    """Start ``command`` in a process group of its own, its output in ``log`` (made anew).

    Not in a session of its own: Linux shares the CPU out by session first (autogroup), and
    vLLM's processes spin. On two cores a load generator in another session than they were
    waited up to 600 ms for its turn; in theirs, 20 ms at most.

    Raises StackError when the program cannot be started.
    """
    marked_environment = {
        **environment,
        MARK: mark,
        # vLLM retitles its processes; this keeps their environment readable
        "SPT_NOENV": "1",
    }
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # not subprocess: its objects expect to be waited for, and these processes stay
        pid = os.posix_spawn(
            command[0],
            list(command),
            marked_environment,
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ),
            setpgroup=0,
            # Python ignores this one, and an ignored signal would stay so in the server
            setsigdef=(signal.SIGPIPE,),
        )
    except OSError as error:
        raise StackError(f"{command[0]}: cannot be started ({error.strerror})") from error
    # a process that has ended already stays, as a zombie, until ``exit_code`` asks for it
    return Started(pid, started_s(pid) or 0.0)


def exit_code(started: Started) -> int | None:
    """How a child of this process ended (minus a signal's number); None while it lives."""
    pid, status = os.waitpid(started.pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def started_s(pid: int) -> float | None:
    """When the process started, in seconds of an arbitrary but steady clock; None: no process.

    On Linux since boot, from ``/proc``: psutil's wall-clock figure moves when the clock
    is set. Elsewhere psutil's.
    """
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        # field 22 of proc(5), counted from the state (field 3), which follows the name
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def is_running(pid: int, pid_started_s: float) -> bool:
    """Whether the process of that id lives, is no zombie and is not a later one."""
    if started_s(pid) != pid_started_s:
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """Every living process that carries the mark."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        # other users' processes and those that end meanwhile cannot be read; a zombie's
        # environment is empty
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def stop(
    mark: str, grace_s: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> int:
    """End all that carry the mark: SIGTERM, and SIGKILL for what is left after ``grace_s``.

    Returns how many processes had to be killed; raises StackError when some remain.
    """
    left = _signal_until_gone(mark, signal.SIGTERM, grace_s, clock, sleep)
    if not left:
        return 0
    remaining = _signal_until_gone(mark, signal.SIGKILL, _KILL_S, clock, sleep)
    if remaining:
        pids = ", ".join(str(process.pid) for process in remaining)
        raise StackError(f"processes that cannot be ended: {pids}; end them by hand")
    return len(left)


def _signal_until_gone(
    mark: str,
    number: signal.Signals,
    limit_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[psutil.Process]:
    """Send a signal once to each that carries the mark; what is left after the limit."""
    deadline = clock() + limit_s
    asked: set[psutil.Process] = set()
    while left := marked(mark):
        for process in left:
            if process not in asked:
                asked.add(process)
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
        if clock() >= deadline:
            return left
        sleep(_POLL_S)
    return []
