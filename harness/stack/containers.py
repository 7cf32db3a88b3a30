"""Servers in containers: a Compose project that belongs to one home, brought up and taken down.

What was brought up is kept in ``<home>/compose.json`` until it is down again, so that any later
command of that home can take it down, also after this process was killed. Volumes and images
stay: the next start neither downloads a model nor compiles kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from harness.errors import KvkneeError, StackError, UsageError, printable, shortened
from harness.rundir import replace_file
from harness.stack.health import tail
from harness.stack.process import MARK, stop

#: images may have to be built and weights downloaded; a stop waits for the containers' own grace
_UP_S, _DOWN_S = 7200.0, 300.0
#: Compose gets this long to end when it is asked to
_GRACE_S = 10.0


class Brought(msgspec.Struct, frozen=True):
    """What was brought up: Compose's files in order, the settings given, the services named."""

    files: tuple[str, ...]
    settings: dict[str, str]
    services: tuple[str, ...]


class Containers:
    """The Compose project of a home; one command at a time, which the caller sees to."""

    def __init__(self, home: Path) -> None:
        self._state = home / "compose.json"
        self.log = home / "compose.log"
        self.project = project_name(home)

    def up(self, brought: Brought) -> None:
        """Build and start the services and wait until they are healthy.

        Raises UsageError without a Docker client, StackError when Compose fails; nothing of it
        is left up then.
        """
        _client()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        replace_file(self._state, msgspec.json.encode(brought))
        what = ("up", "--detach", "--build", "--wait", *brought.services)
        try:
            self._compose(brought, what, _UP_S)
        except BaseException:
            # half a stack holds its memory and its ports; what went wrong first is what is said
            with contextlib.suppress(KvkneeError):
                self.down()
            raise

    def down(self) -> tuple[str, ...]:
        """Remove what is up; names of its services. Raises StackError and UsageError."""
        brought = self._read()
        if brought is None:
            return ()
        # the Compose of a killed process may still be at work
        self._end()
        what = ("down", "--remove-orphans")
        try:
            self._compose(brought, what, _DOWN_S)
        except KeyboardInterrupt:
            # containers that stay would disturb whatever runs here next
            with contextlib.suppress(KvkneeError):
                self._compose(brought, what, _DOWN_S)
                self._state.unlink(missing_ok=True)
            raise
        self._state.unlink(missing_ok=True)
        return brought.services

    def _read(self) -> Brought | None:
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=Brought)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"{self._state}: cannot be read ({error}); remove the containers of the project "
                f"{self.project} with docker compose, and this file"
            ) from error

    def _compose(self, brought: Brought, what: Sequence[str], limit_s: float) -> None:
        files = [part for name in brought.files for part in ("--file", name)]
        command = [_client(), "compose", "--project-name", self.project, *files, *what]
        try:
            with self.log.open("ab") as log:
                log.write(f"# docker compose {' '.join(what)}\n".encode())
                log.flush()
                code = self._run(command, {**os.environ, **brought.settings}, log, limit_s)
        except OSError as error:
            raise StackError(f"docker compose cannot be run ({error})") from error
        except subprocess.TimeoutExpired as error:
            raise StackError(
                f"docker compose {what[0]} had not ended after {limit_s:.0f} s; log: {self.log}"
            ) from error
        if code != 0:
            said = tail(self.log, 1)
            why = f" ({shortened(printable(said[-1]), 300)})" if said else ""
            raise StackError(
                f"docker compose {what[0]} ended with exit code {code}{why}; log: {self.log}"
            )

    def _run(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], limit_s: float
    ) -> int:
        """A process group of its own: Ctrl-C in the terminal is for us, who then tidy up."""
        process = subprocess.Popen(  # noqa: S603 - a list of arguments
            command,
            env={**environment, MARK: self.project},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            return process.wait(limit_s)
        except BaseException:
            self._end()
            process.wait()
            raise

    def _end(self) -> None:
        """End Compose and its plugins, not the containers."""
        stop(self.project, _GRACE_S, time.monotonic, time.sleep)


def project_name(home: Path) -> str:
    """The Compose project of a home; no two homes have the same."""
    return f"kvknee-{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:8]}"


def _client() -> str:
    client = shutil.which("docker")
    if client is None:
        raise UsageError("docker is not installed here; install Docker with its Compose plugin")
    return client
