"""Memory of a local server's process tree, where no GPU tells.

The scraper samples it beside the metrics and journals it as Prometheus text, so that
one reader serves both.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil

#: journal of ``paged``'s process tree: ``scrapes/paged.process.jsonl.gz``
TARGET_SUFFIX = ".process"
TREE_RSS = "kvknee_process_tree_resident_bytes"
TREE_SIZE = "kvknee_process_tree_processes"


class ProcessEndedError(Exception):
    """The server's process is gone."""


@dataclass(frozen=True)
class TreeMemory:
    """Resident memory of a process and all its descendants."""

    #: pages shared between processes count once in each
    rss_bytes: int
    processes: int


class ProcessTree:
    """A process and its descendants.

    The process is looked up once: should its id be given to another one later, that one
    is not mistaken for it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self._root: psutil.Process | None = psutil.Process(pid)
        except psutil.Error:
            self._root = None

    def memory(self) -> TreeMemory:
        """Sum of the resident sizes of the process and its descendants.

        A descendant that ends meanwhile, or that may not be looked at, is left out.
        Raises ProcessEndedError when the process itself is gone or a zombie.
        """
        try:
            if self._root is None or self._root.status() == psutil.STATUS_ZOMBIE:
                raise ProcessEndedError(f"process {self._pid} has ended")
            descendants = self._root.children(recursive=True)
            sizes = [self._root.memory_info().rss]
        except psutil.Error as error:
            raise ProcessEndedError(f"process {self._pid} has ended") from error
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                sizes.append(process.memory_info().rss)
        return TreeMemory(rss_bytes=sum(sizes), processes=len(sizes))


def exposition(memory: TreeMemory) -> str:
    """The sample as Prometheus text."""
    return (
        f"# TYPE {TREE_RSS} gauge\n{TREE_RSS} {memory.rss_bytes}\n"
        f"# TYPE {TREE_SIZE} gauge\n{TREE_SIZE} {memory.processes}\n"
    )
