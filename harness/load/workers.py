"""What a run needs of the processes that make its requests elsewhere.

``harness.load.distributed.fleet`` is them; a run whose users are all in its own process has
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from harness.live.feed import LiveFeed
from harness.records import Scalar
from harness.workload import Slo


class Journals(Protocol):
    """Where records of workers are kept."""

    def shipped(self, records: bytes, outcomes: Iterable[str], events: bytes) -> None:
        """Write down what is new: whole lines, and the outcome of each record."""
        ...


class OneWorker(Protocol):
    """A worker, as far as a run speaks of it."""

    @property
    def where(self) -> str:
        """For people: its name, its process and its host."""
        ...

    def loss(self) -> dict[str, Scalar]:
        """The detail of its ``worker_lost`` event."""
        ...


class Workers(Protocol):
    """The workers of a run."""

    @property
    def fault(self) -> str | None:
        """What one of them says stops the run; None while all is well."""
        ...

    def begin(self, run: str, slo: Slo, journals: Journals, live: LiveFeed) -> None:
        """The run begins."""
        ...

    def environment(self) -> dict[str, Scalar]:
        """The workers, for the manifest."""
        ...

    def lost(self) -> Sequence[OneWorker]:
        """Workers that have fallen silent since this was last asked."""
        ...

    def left(self) -> Sequence[OneWorker]:
        """Workers that have ended by themselves; nothing of theirs is missing."""
        ...

    def gather(self) -> Sequence[OneWorker]:
        """Have the last records of all; those that gave none are returned."""
        ...
