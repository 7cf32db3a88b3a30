"""The servers of a night in containers: Compose files, in a project of the night's own.

The project's name holds the home's, so a project of that name is always a nightly job's, and one
that a killed job left behind is taken down by the next. Its volumes stay: the second night
neither downloads the model nor compiles kernels again. The user's own ``docker compose up`` is
another project, which is neither used nor stopped; ``--backends`` measures that one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.errors import KvkneeError, NightlyError, StackError, printable, shortened
from harness.nightly.job.plan import Group
from harness.sizes import parse_size
from harness.stack.fleet import free_ports
from harness.stack.health import answers, tail
from harness.stack.process import MARK, stop
from harness.stack.progress import Progress

#: images may have to be built and weights downloaded; a stop waits for the containers' own grace
_UP_S, _DOWN_S, _ASK_S = 7200.0, 300.0, 60.0
#: Compose gets this long to end when it is asked to
_GRACE_S = 10.0


class ComposeServers:
    """The services ``paged`` and ``contiguous`` of Compose files, started for the night.

    ``files`` in Compose's order, ``home`` holds the log of Compose and names the project. The
    suite's model and KV budget are given as ``MODEL`` and ``KV_BUDGET_BYTES``, free ports as
    ``PAGED_PORT`` and ``CONTIGUOUS_PORT``; all else is as the files and their ``.env`` say.
    """

    def __init__(
        self,
        files: Sequence[Path],
        home: Path,
        progress: Progress,
        probe: Callable[[str], bool] = answers,
    ) -> None:
        self._files = tuple(files)
        self._log = home / "compose.log"
        self._project = project_name(home)
        self._progress = progress
        self._probe = probe
        self._group: Group | None = None
        self._urls: Mapping[str, str] = {}

    @property
    def restartable(self) -> bool:
        """Whether there is a stack that was started here."""
        return self._group is not None

    def start(self, group: Group) -> Mapping[str, str]:
        """Build and start them, and wait until they are healthy."""
        self._group = group
        return self._up(group)

    def dead(self) -> tuple[str, ...]:
        """Those that do not answer."""
        names = self._group.backends if self._group is not None else ()
        return tuple(n for n in names if n not in self._urls or not self._probe(self._urls[n]))

    def restart(self) -> Mapping[str, str]:
        """All containers anew."""
        if self._group is None:
            raise StackError("no stack was started")
        self._urls = {}
        self._down()
        return self._up(self._group)

    def stop(self) -> None:
        """Remove the containers; volumes and images stay."""
        if self._group is not None:
            self._group, self._urls = None, {}
            self._progress.update("stopping the containers")
            self._down()

    def clear(self) -> tuple[str, ...]:
        """Remove what a killed job left of this project; names of its services."""
        # a log is a night's; the Compose of a killed job may still be at work
        self._log.unlink(missing_ok=True)
        self._end()
        found = self._compose(("ps", "--all", "--services"), {}, _ASK_S)
        names = tuple(sorted(name for name in found.split() if name in ("paged", "contiguous")))
        if found.split():
            self._down()
        return names

    def _up(self, group: Group) -> Mapping[str, str]:
        ports = dict(zip(("paged", "contiguous"), free_ports(2), strict=True))
        settings = {
            "MODEL": group.model,
            **{f"{name.upper()}_PORT": str(port) for name, port in ports.items()},
        }
        if group.kv_budget is not None:
            settings["KV_BUDGET_BYTES"] = str(parse_size(group.kv_budget, "kv_budget"))
        names = " and ".join(group.backends)
        self._progress.note(f"starting {names} with docker compose; log: {self._log}")
        try:
            self._compose(("up", "--detach", "--build", "--wait", *group.backends), settings, _UP_S)
        except BaseException:
            # half a stack holds its memory and its ports; what went wrong first is what is said
            with contextlib.suppress(KvkneeError):
                self._down()
            raise
        self._urls = {name: f"http://127.0.0.1:{ports[name]}" for name in group.backends}
        return self._urls

    def _down(self) -> None:
        self._compose(("down", "--remove-orphans"), {}, _DOWN_S)

    def _compose(self, what: Sequence[str], settings: Mapping[str, str], limit_s: float) -> str:
        """Run Compose and give what it printed.

        Raises NightlyError without a Docker client, StackError when Compose fails.
        """
        client = shutil.which("docker")
        if client is None:
            raise NightlyError("docker is not installed here, and the suite has [compose]")
        files = [part for path in self._files for part in ("--file", str(path))]
        command = [client, "compose", "--project-name", self._project, *files, *what]
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as log:
                log.write(f"# docker compose {' '.join(what)}\n")
                log.flush()
                code, printed = self._run(command, {**os.environ, **settings}, log, limit_s)
        except OSError as error:
            raise NightlyError(f"docker compose cannot be run ({error})") from error
        except subprocess.TimeoutExpired as error:
            raise StackError(
                f"docker compose {what[0]} had not ended after {limit_s:.0f} s; log: {self._log}"
            ) from error
        if code != 0:
            raise StackError(self._failed(what[0], code))
        return printed

    def _run(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[str], limit_s: float
    ) -> tuple[int, str]:
        """A process group of its own: Ctrl-C in the terminal is for the job, which tidies up."""
        process = subprocess.Popen(  # noqa: S603 - a list of arguments
            command,
            env={**environment, MARK: self._project},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            process_group=0,
        )
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except BaseException:
            self._end()
            process.communicate()
            raise
        return process.returncode, printed

    def _end(self) -> None:
        """End Compose and its plugins, not the containers."""
        stop(self._project, _GRACE_S, time.monotonic, time.sleep)

    def _failed(self, what: str, code: int) -> str:
        said = tail(self._log, 1)
        why = f" ({shortened(printable(said[-1]), 300)})" if said else ""
        return f"docker compose {what} ended with exit code {code}{why}; log: {self._log}"


def project_name(home: Path) -> str:
    """The project of the nightly jobs of that home; jobs of one home have a common lock."""
    return f"kvknee-nightly-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:8]}"
