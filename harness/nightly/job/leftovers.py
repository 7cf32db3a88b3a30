"""What a nightly job that was killed has left up: local servers, or containers."""

from __future__ import annotations

from pathlib import Path

from harness.stack import local
from harness.stack.containers import Containers
from harness.stack.local import Runtime


def take_down(own: Path, runtime: Runtime | None = None) -> tuple[str, ...]:
    """Stop all that is up in the jobs' own home; the names. Raises KvkneeError.

    Whatever starts the servers next: what the last job left may be of the other kind. The
    caller holds the lock of that home's jobs.
    """
    return (*local.down(own, runtime).names, *Containers(own).down())
