"""Starts a server of this machine's stack anew with the number of requests that was found."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from harness.errors import UsageError
from harness.load.launched import launched_as
from harness.manifest import BackendInfo
from harness.records import Scalar
from harness.stack.restart import OwnedServer, owned_servers, restart, up_command
from harness.stack.state import home_folder

logger = logging.getLogger(__name__)


def owned_backends(infos: Iterable[BackendInfo]) -> dict[str, OwnedServer]:
    """The backends, by name, that this machine's stack has started.

    With a damaged state none is: nothing is restarted that is not known for sure.
    """
    try:
        servers = owned_servers(home_folder())
    except UsageError:
        return {}
    found: dict[str, OwnedServer] = {}
    for info in infos:
        launch = launched_as(info, (server.backend for server in servers))
        owner = next((server for server in servers if server.backend is launch), None)
        if owner is not None:
            found[info.name] = owner
    return found


class StackRestarts:
    """Restarts by name; ``logger`` tells what goes on."""

    def __init__(self, owned: Mapping[str, OwnedServer]) -> None:
        self._owned = owned

    def __call__(self, backend: str, level: int) -> None:
        """Ready again when it returns; raises UsageError or StackError."""
        server = self._owned[backend]
        changes: dict[str, Scalar] = {"max_num_seqs": level}
        if server.settings.get("batching") == "static":
            changes["batch_size"] = level
        logger.info("restarting %s with --max-num-seqs %d, to verify it", backend, level)
        restart(server, changes, _Logged())

    def command(self, backend: str) -> str:
        """What to type to have a server as it was before."""
        return up_command(self._owned[backend])


class _Logged:
    """Progress of a start as lines of the run's log."""

    def update(self, text: str) -> None:
        """What goes on now is said often; the log has no use for it."""

    def note(self, text: str) -> None:
        """Something that happened."""
        logger.info("%s", text)

    def log_tail(self, title: str, lines: Sequence[str]) -> None:
        """The last lines of a server that died."""
        logger.error("%s", title)
        for line in lines:
            logger.error("  %s", line)
