"""How Locust shares users out: over the workers that a run began with, and no others.

Locust moves users when a worker comes or goes. In mid-level that would change who is
measured; a worker that comes late waits for the next run instead, and one that goes ends
the run.
"""

from __future__ import annotations

from locust.dispatch import UsersDispatcher
from locust.runners import WorkerNode


class FixedDispatcher(UsersDispatcher):
    """Locust's dispatcher without its rebalancing."""

    def add_worker(self, worker_node: WorkerNode) -> None:
        """Not before the next run."""

    def remove_worker(self, worker_node: WorkerNode) -> None:
        """The run is about to end."""
