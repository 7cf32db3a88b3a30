"""Open files: every stream is one, and a process may have only so many."""

from __future__ import annotations

import contextlib
import resource

from harness.errors import UsageError

#: connections that are no streams, journals, libraries, and what Python itself has open
SPARE_FILES = 256


def require_open_files(streams: int) -> None:
    """Let this process hold so many streams open; raises UsageError when it cannot.

    The soft limit is raised to the hard one where it is too low, which any user may do;
    processes started later inherit it.
    """
    needed = streams + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _allows(soft, needed):
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _allows(soft, needed):
        raise UsageError(
            f"{streams} concurrent requests need {needed} open files and this process may have "
            f"{soft}; raise it first (ulimit -n {needed}, or nofile in limits.conf), spread the "
            "load (--processes N), or ask for fewer"
        )


def _allows(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
