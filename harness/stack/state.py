"""What runs of the local stack: ``<home>/stack/state.json``.

::

    <home>/                 $KVKNEE_HOME, or .kvknee in the working folder
        models/<name>/      the models made here
        logs/<name>.log     what each server says
        stack/state.json    this file's StackState, while the stack is up
        stack/lock          held while a command starts or stops the stack
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from harness.errors import UsageError
from harness.records import Scalar
from harness.stack.process import is_running

STATE_VERSION = 1


class LaunchedBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A server that ``kvknee up`` started, and the settings it was started with."""

    #: ``paged`` or ``contiguous``
    name: str
    url: str
    pid: int
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
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int | None
    kv_budget_bytes: int
    #: None when the model's architecture is not known
    kv_bytes_per_token: int | None
    #: tokens per block as asked for; None: the engine's default, or no blocks
    block_size: int | None
    log: str
    #: ``cpu`` or ``gpu``
    device: str | None = None
    #: CPU threads it was told to compute with; None: the engine's choice (on a GPU)
    threads: int | None = None
    #: prompt tokens between two decode steps, at most (contiguous)
    prefill_chunk: int | None = None
    #: what it computes with: ``torch 2.13.0+cpu, transformers 5.19.0``
    libraries: str | None = None

    def is_running(self) -> bool:
        """Whether its process lives; it need not answer yet."""
        return is_running(self.pid, self.pid_started_s)


class StackState(msgspec.Struct, frozen=True, kw_only=True):
    """The stack as ``kvknee up`` left it."""

    schema_version: int = STATE_VERSION
    #: every process of the stack carries it in its environment
    mark: str
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
        return msgspec.json.decode(path.read_bytes(), type=StackState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{path}: not readable as the stack's state ({error}); "
            "end the servers by hand and delete the file"
        ) from error


def running_backends(home: Path) -> tuple[LaunchedBackend, ...]:
    """The servers of that home's stack whose processes live."""
    state = read_state(home)
    return tuple(b for b in state.backends if b.is_running()) if state else ()


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
