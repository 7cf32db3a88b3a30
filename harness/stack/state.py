"""What runs of the local stack: ``<home>/stack/state.json``.

::

    <home>/                 $KVKNEE_HOME, or .kvknee in the working folder
        models/<name>/      the models made here
        logs/<name>.log     what each server says
        stack/state.json    this file's StackState, while the stack is up
        stack/lock          held while a command starts or stops the stack
        fleet/<name>/       homes of servers that a scenario has started to compare them
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from harness.errors import UsageError, shortened
from harness.records import Scalar
from harness.stack.process import is_running

STATE_VERSION = 1
#: a folder of homes, of servers that are compared with each other
FLEET = "fleet"

#: what Linux gives at most is far below; larger ones are no ids to the system's calls
_Pid = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
#: an empty mark would stand for every process without one
_Mark = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_URL = re.compile(r"https?://[A-Za-z0-9.-]+:([0-9]{1,5})")
_LAST_PORT = 65535


class LaunchedBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A server that ``kvknee up`` started, and the settings it was started with."""

    #: ``paged`` or ``contiguous``
    name: str
    url: str
    pid: _Pid
    #: tells this process from a later one of the same id: ``process.started_s``
    pid_started_s: float
    #: ``vllm`` or ``contiguous``
    kind: str
    #: cache mode, as in BackendInfo
    mode: str
    #: as it was asked for
    model: str
    #: a folder, or a hub id
    model_path: str
    served_model_name: str
    dtype: str
    max_model_len: _Count
    max_num_seqs: _Count
    max_num_batched_tokens: _Count | None
    kv_budget_bytes: _Count
    #: None when the model's architecture is not known
    kv_bytes_per_token: _Count | None
    #: tokens per block as asked for; None: the engine's default, or no blocks
    block_size: _Count | None
    log: str
    #: ``cpu`` or ``gpu``
    device: str | None = None
    #: CPU threads it was told to compute with; None: the engine's choice (on a GPU)
    threads: _Count | None = None
    #: prompt tokens between two decode steps, at most (contiguous)
    prefill_chunk: _Count | None = None
    #: what it computes with: ``torch 2.13.0+cpu, transformers 5.19.0``
    libraries: str | None = None

    def is_running(self) -> bool:
        """Whether its process lives; it need not answer yet."""
        return is_running(self.pid, self.pid_started_s)


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """The stack as ``kvknee up`` left it."""

    schema_version: int = STATE_VERSION
    #: every process of the stack carries it in its environment
    mark: _Mark
    #: what was asked, defaults filled in: two equal sets give the same stack
    settings: dict[str, Scalar]
    #: every server became healthy; False while the stack starts, or when that was cut short
    ready: bool = False
    backends: tuple[LaunchedBackend, ...] = ()


def home_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where kvknee keeps models, logs and state."""
    return Path(environment.get("KVKNEE_HOME") or ".kvknee")


def state_path(home: Path) -> Path:
    """Where the state of that home lies."""
    return home / "stack" / "state.json"


def read_state(home: Path) -> StackState | None:
    """The stack's state; None when none is up. Raises UsageError for a damaged file."""
    path = state_path(home)
    try:
        state = msgspec.json.decode(path.read_bytes(), type=StackState)
        _check(state)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{path}: not readable as the stack's state ({reason}); "
            "end the servers by hand and delete the file"
        ) from error
    return state


def _check(state: StackState) -> None:
    """Raise ValueError for what the types leave open."""
    if state.schema_version != STATE_VERSION:
        raise ValueError(f"schema_version {state.schema_version}, not {STATE_VERSION}")
    for backend in state.backends:
        url = _URL.fullmatch(backend.url)
        if url is None or not 1 <= int(url[1]) <= _LAST_PORT:
            raise ValueError(f"backend with the url {shortened(backend.url)!r}")


def running_backends(home: Path) -> tuple[LaunchedBackend, ...]:
    """The servers of that home's stack whose processes live."""
    state = read_state(home)
    return tuple(b for b in state.backends if b.is_running()) if state else ()


def fleet_backends(home: Path) -> tuple[LaunchedBackend, ...]:
    """Those of that home's fleet (``harness.stack.fleet``); raises UsageError as above."""
    homes = sorted(path for path in (home / FLEET).glob("*") if path.is_dir())
    return tuple(backend for member in homes for backend in running_backends(member))


def write_state(home: Path, state: StackState) -> None:
    """Replace the state whole or not at all; raises UsageError when it cannot be written."""
    path = state_path(home)
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise _unwritable(home, error) from error


def remove_state(home: Path) -> None:
    """Forget the stack; nothing to forget is fine."""
    state_path(home).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Keep other commands from starting or stopping this home's stack meanwhile.

    Raises UsageError when one is at it. The system frees the lock of a dead process.
    """
    path = home / "stack" / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritable(home, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            raise UsageError(
                f"another kvknee command (pid {holder}) is starting or stopping the stack "
                f"in {home}; wait for it, or end it with Ctrl-C"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _unwritable(home: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--home: {home} cannot be written ({error.strerror}); name a folder that you may write to"
    )
