"""Open files: every stream is one, and a process may have only so many."""

from __future__ import annotations

import contextlib
import math
import resource

from harness.errors import UsageError
from harness.workload import Workload

#: connections that are no streams, journals, libraries, and what Python itself has open
SPARE_FILES = 256


def most_streams(workload: Workload, processes: int = 1) -> int:
    """Streams that each of so many processes holds at the largest level, rounded up.

    An open loop without ``--max-concurrency`` has no such number: 0.
    """
    asked = workload.open_loop
    most = max(workload.levels) if asked is None else asked.max_concurrency or 0
    return math.ceil(most / processes)


def require_open_files(streams: int) -> None:
    """Let this process hold so many streams open; raises UsageError when it cannot.

    The soft limit is raised to the hard one, which any user may do; processes started later
    inherit it.
    """
    needed = streams + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if not _allows(soft, needed):
        raise UsageError(
            f"{streams} concurrent requests need {needed} open files and this process may have "
            f"{soft}; raise it first (ulimit -n {needed}, or nofile in limits.conf), spread the "
            "load (--processes N), or ask for fewer"
        )


def _allows(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
