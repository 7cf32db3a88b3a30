"""The local stack started anew with other options, when it is this machine's own."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from harness.errors import KvkneeError, UsageError
from harness.records import Scalar
from harness.stack import local
from harness.stack.local import Runtime
from harness.stack.options import UpOptions
from harness.stack.progress import Progress
from harness.stack.state import FLEET, LaunchedBackend, read_state


@dataclass(frozen=True)
class OwnedServer:
    """A server of a stack, the stack's home, and what ``kvknee up`` was asked for it."""

    home: Path
    backend: LaunchedBackend
    settings: Mapping[str, Scalar]


def owned_servers(home: Path) -> tuple[OwnedServer, ...]:
    """The running servers of that home's stack and of its fleet; raises UsageError."""
    members = sorted(path for path in (home / FLEET).glob("*") if path.is_dir())
    return tuple(server for place in (home, *members) for server in _servers(place))


def _servers(home: Path) -> Iterable[OwnedServer]:
    state = read_state(home)
    if state is None or not state.ready:
        return ()
    return tuple(
        OwnedServer(home, backend, state.settings)
        for backend in state.backends
        if backend.is_running()
    )


def up_options(server: OwnedServer, changes: Mapping[str, Scalar]) -> UpOptions:
    """What ``kvknee up`` is asked to start the same stack with the changes.

    Raises UsageError for a setting that this version of kvknee does not know.
    """
    known = {item.name for item in fields(UpOptions)}
    asked = {**server.settings, **changes}
    strange = sorted(set(asked) - known)
    if strange:
        raise UsageError(f"{server.home}: the stack was started with {', '.join(strange)}")
    return UpOptions(home=server.home, **asked)  # type: ignore[arg-type]


def up_command(server: OwnedServer) -> str:
    """What to type to have the server's stack as it was."""
    usual = {item.name: item.default for item in fields(UpOptions)}
    words = ["kvknee", "up", "--home", str(server.home)]
    for name, value in server.settings.items():
        # each setting is named as its option is; one without a value is a switch
        if value is None or value == usual.get(name):
            continue
        words += [f"--{name.replace('_', '-')}", *(() if value is True else (str(value),))]
    return shlex.join(words)


def restart(
    server: OwnedServer,
    changes: Mapping[str, Scalar],
    progress: Progress,
    runtime: Runtime | None = None,
) -> None:
    """Stop the server's stack, all of it, and start it with the changes.

    When it does not start with them it is started as it was, and the error is raised:
    UsageError or StackError.
    """
    before, after = up_options(server, {}), up_options(server, changes)
    local.down(server.home, runtime)
    try:
        local.up(after, progress, runtime)
    except KvkneeError:
        local.up(before, progress, runtime)
        raise
