"""Nothing here waits for ever: commands and reads that end, or are given up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from harness.doctor.facts import Ran, Unknown


class Run(Protocol):
    """Runs a command with a limit of its own; ``extra`` adds to its environment."""

    def __call__(
        self, command: Sequence[str], extra: Mapping[str, str] | None = None
    ) -> Ran | Unknown:
        """How it ended; Unknown when it did not."""
        ...


Value = TypeVar("Value")
#: a daemon that is well answers in a fraction of a second
COMMAND_S = 10.0
#: a file of some megabytes is more than any of the commands prints
_MOST_BYTES = 2**22
#: a killed process is gone at once, but for one that hangs in the kernel
_REAP_S = 2.0


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str | None = None,
    limit_s: float = COMMAND_S,
) -> Ran | Unknown:
    """Run a command to its end; Unknown when it cannot start, or is killed at the limit.

    It gets a session of its own, so that nothing can ask at the terminal (ssh would) and
    its children end with it. Output is read as text, whatever its bytes are.
    """
    name = os.path.basename(command[0])  # noqa: PTH119 - a text of a command, not a path
    try:
        process = subprocess.Popen(  # noqa: S603
            list(command),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Unknown(f"{name} cannot be started ({error.strerror})")
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return Unknown(f"{name} gave no answer in {limit_s:g} s")
    return Ran(process.returncode, _text(out), _text(err))


def _text(raw: bytes) -> str:
    return raw[:_MOST_BYTES].decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session; its pipes are closed, not drained: a child may hold them."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


def all_within(limit_s: float, reads: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Run all at once; a read that is not back in time is Unknown.

    Its thread is left alone: a file system that hangs cannot be told to stop. An
    exception of a read is raised here, for it is a fault of ours.
    """
    results: dict[str, Any] = {}
    errors: list[BaseException] = []

    def work(name: str, read: Callable[[], Any]) -> None:
        try:
            results[name] = read()
        except BaseException as error:
            errors.append(error)

    threads = {
        name: threading.Thread(target=work, args=(name, read), daemon=True)
        for name, read in reads.items()
    }
    for thread in threads.values():
        thread.start()
    deadline_s = time.monotonic() + limit_s
    for thread in threads.values():
        thread.join(max(0.0, deadline_s - time.monotonic()))
    done = dict(results)
    if errors:
        raise errors[0]
    late = Unknown(f"no answer in {limit_s:g} s")
    return {name: done.get(name, late) for name in threads}


def within(limit_s: float, read: Callable[[], Value]) -> Value | Unknown:
    """One read, given up after ``limit_s``."""
    result: Value | Unknown = all_within(limit_s, {"one": read})["one"]
    return result
