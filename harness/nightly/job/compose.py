"""The servers of a night in containers: Compose files, in a project of the nightly jobs' own.

The user's own ``docker compose up`` is another project, which is neither used nor stopped;
``--backends`` measures that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.errors import NightlyError, StackError, UsageError
from harness.nightly.job.leftovers import take_down
from harness.nightly.job.plan import Group
from harness.sizes import parse_size
from harness.stack.containers import Brought, Containers
from harness.stack.fleet import free_ports
from harness.stack.health import answers
from harness.stack.progress import Progress


class ComposeServers:
    """The services ``paged`` and ``contiguous`` of Compose files, started for the night.

    ``files`` in Compose's order; ``home`` is the jobs' own. The suite's model and KV budget are
    given as ``MODEL`` and ``KV_BUDGET_BYTES``, free ports as ``PAGED_PORT`` and
    ``CONTIGUOUS_PORT``; all else is as the files and their ``.env`` say.
    """

    def __init__(
        self,
        files: Sequence[str],
        home: Path,
        progress: Progress,
        probe: Callable[[str], bool] = answers,
    ) -> None:
        self._files = tuple(files)
        self._home = home
        self._containers = Containers(home)
        self._progress = progress
        self._probe = probe
        self._group: Group | None = None
        self._urls: Mapping[str, str] = {}

    @property
    def restartable(self) -> bool:
        """Whether there is a stack that was started here."""
        return self._group is not None

    def start(self, group: Group) -> Mapping[str, str]:
        """Build and start them, and wait until they are healthy."""
        self._group = group
        return self._up(group)

    def dead(self) -> tuple[str, ...]:
        """Those that do not answer."""
        names = self._group.backends if self._group is not None else ()
        return tuple(n for n in names if n not in self._urls or not self._probe(self._urls[n]))

    def restart(self) -> Mapping[str, str]:
        """All containers anew."""
        if self._group is None:
            raise StackError("no stack was started")
        self._urls = {}
        self._containers.down()
        return self._up(self._group)

    def stop(self) -> None:
        """Remove the containers; volumes and images stay."""
        self._group, self._urls = None, {}
        self._progress.update("stopping the containers")
        self._containers.down()

    def clear(self) -> tuple[str, ...]:
        """What a killed job left, of either kind."""
        return take_down(self._home)

    def _up(self, group: Group) -> Mapping[str, str]:
        ports = dict(zip(("paged", "contiguous"), free_ports(2), strict=True))
        settings = {f"{name.upper()}_PORT": str(port) for name, port in ports.items()}
        settings["MODEL"] = group.model
        if group.kv_budget is not None:
            settings["KV_BUDGET_BYTES"] = str(parse_size(group.kv_budget, "kv_budget"))
        names = " and ".join(group.backends)
        self._progress.note(f"starting {names} with docker compose; log: {self._containers.log}")
        try:
            self._containers.up(Brought(self._files, settings, group.backends))
        except UsageError as error:
            raise NightlyError(f"the suite has [compose]: {error}") from error
        self._urls = {name: f"http://127.0.0.1:{ports[name]}" for name in group.backends}
        return self._urls
