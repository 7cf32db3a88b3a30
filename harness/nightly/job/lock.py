"""One nightly job at a time: a locked file that says who holds it.

The system frees the lock of a dead process, so what a killed job left in the file is not a lock:
it tells the next job which processes may be left of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from harness.errors import NightlyError

_MOST_BYTES = 4096


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock; every process of its loads carries ``mark`` in its environment."""

    pid: int
    suite: str
    at_wall_s: float
    mark: str


@contextlib.contextmanager
def held(path: Path, holder: Holder) -> Iterator[Holder | None]:
    """Hold the lock; gives the job that died while it held it, if one did.

    Raises NightlyError when another job has it, or when the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise NightlyError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        found = _lock(descriptor, path)
        try:
            _write(descriptor, msgspec.json.encode(holder))
        except OSError as error:
            raise NightlyError(f"{path}: cannot be written ({error.strerror})") from error
        yield found
        # only whoever ends in order forgets; after an error here the next job looks again
        _write(descriptor, b"")
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> Holder | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        by = _read(descriptor)
        who = f"pid {by.pid}, suite {by.suite}, since {_when(by.at_wall_s)}" if by else "unknown"
        raise NightlyError(
            f"another nightly job holds {path} ({who}); wait for it, or end it with SIGTERM"
        ) from None
    return _read(descriptor)


def _read(descriptor: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, _MOST_BYTES, 0), type=Holder)
    except msgspec.MsgspecError:
        return None


def _write(descriptor: int, text: bytes) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)


def _when(at_wall_s: float) -> str:
    return datetime.fromtimestamp(at_wall_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
