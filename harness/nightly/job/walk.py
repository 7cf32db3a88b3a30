"""Walks through a night's repeats and survives what breaks on the way.

* A server that died is restarted, all of its stack, and the repeat that it spoiled is made
  again, once a night. The second time that repeat's run is given up, what it measured is kept, and
  where other runs still need the stack it is started once more for them.
* A cell that gives no figure, a load that fails, a stack that does not start: recorded, and the
  rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import KvkneeError, NightlyError, printable, shortened
from harness.nightly.figures import StoredFigure
from harness.nightly.job.harvest import Harvest, Place, Setups, changed_setup
from harness.nightly.job.load import Loaded, Loader
from harness.nightly.job.plan import Group, Repeat
from harness.nightly.job.servers import Servers
from harness.nightly.night_types import EventKind, NightEvent, NightRun

#: of what a load said last, in an event
_MOST_SAID = 200


@dataclass
class Tonight:
    """What has been measured so far."""

    runs: list[NightRun] = field(default_factory=list)
    figures: list[StoredFigure] = field(default_factory=list)
    setups: Setups = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    events: list[NightEvent] = field(default_factory=list)
    machine: str = ""

    @property
    def measured(self) -> bool:
        """Whether there is any figure at all."""
        return any(item.value is not None for item in self.figures)


class Walk:
    """One night's measuring."""

    def __init__(
        self,
        servers: Servers,
        load: Loader,
        read: Callable[[Path, Repeat], Harvest],
        results: Path,
        wall_s: Callable[[], float],
        doing: Callable[[Repeat], None],
    ) -> None:
        """``read`` is ``harvest``; ``doing`` is told each repeat before it begins."""
        self.tonight = Tonight()
        self._servers = servers
        self._load = load
        self._read = read
        self._results = results
        self._wall_s = wall_s
        self._doing = doing
        self._redone = False
        self._urls: Mapping[str, str] = {}

    def event(self, kind: EventKind, text: str) -> None:
        """Keep an event of now."""
        self.tonight.events.append(NightEvent(self._wall_s(), kind, printable(text)))

    def group(self, group: Group) -> None:
        """Measure the runs of one stack.

        Raises NightlyError when the machine is not as needed and nothing has been measured; a
        night that has measured keeps that, and only these runs fail.
        """
        names = ", ".join(run.name for run in group.runs)
        try:
            self._urls = self._servers.start(group)
        except KvkneeError as error:
            if isinstance(error, NightlyError) and not self.tonight.measured:
                raise
            self.event("run failed", f"{names}: the servers did not start: {error}")
            return
        try:
            self._repeats(group.repeats)
        finally:
            self._stop()

    def _stop(self) -> None:
        try:
            self._servers.stop()
        except KvkneeError as error:
            self.event("run failed", f"the servers could not be stopped: {error}")

    def _repeats(self, repeats: Sequence[Repeat]) -> None:
        given_up: set[str] = set()
        for i, repeat in enumerate(repeats):
            if repeat.run.name in given_up:
                continue
            self._doing(repeat)
            if self._measured(repeat):
                continue
            given_up.add(repeat.run.name)
            others = [item for item in repeats[i + 1 :] if item.run.name not in given_up]
            if others and self._servers.dead() and not self._revived("for the other runs"):
                names = ", ".join(sorted({item.run.name for item in others}))
                self.event("run failed", f"{names}: no servers are left to measure")
                return

    def _measured(self, repeat: Repeat) -> bool:
        """Measure one repeat; False when its run is to be given up."""
        loaded = None if self._servers.dead() else self._load(repeat, self._urls, again=False)
        dead = self._servers.dead()
        if dead and self._servers.restartable and not self._redone:
            self._redone = True
            if not self._revived(f"{' and '.join(dead)} died; {repeat.label} is made again"):
                self._give_up(repeat, loaded, dead)
                return False
            loaded = self._load(repeat, self._urls, again=True)
            dead = self._servers.dead()
        if dead or loaded is None:
            self._give_up(repeat, loaded, dead)
            return False
        return self._keep(repeat, loaded)

    def _revived(self, why: str) -> bool:
        """Start the stack anew; False when that cannot be."""
        if not self._servers.restartable:
            return False
        try:
            self._urls = self._servers.restart()
        except KvkneeError as error:
            self.event("run failed", f"the servers did not start again: {error}")
            return False
        self.event("server restarted", why)
        return True

    def _give_up(self, repeat: Repeat, loaded: Loaded | None, dead: Sequence[str]) -> None:
        if loaded is not None:
            self._keep(repeat, loaded)
        again = " again" if self._redone else ""
        self.event(
            "run failed",
            f"{repeat.label}: {' and '.join(dead)} died{again}; its other repeats are left out",
        )

    def _keep(self, repeat: Repeat, loaded: Loaded) -> bool:
        """Take in what a load left; False when it left nothing."""
        folder = loaded.folder
        place = None if folder is None else str(folder.relative_to(self._results))
        number = repeat.number
        run = NightRun(repeat.run.name, number, loaded.exit_code, loaded.seconds, place)
        self.tonight.runs.append(run)
        said = shortened(loaded.said, _MOST_SAID)
        if folder is None:
            how = f"it left no run directory (exit code {loaded.exit_code})"
            self.event("run failed", f"{repeat.label}: {how}" + (f": {said}" if said else ""))
            return False
        try:
            found = self._read(folder, repeat)
        except (KvkneeError, OSError) as error:
            self.event("run failed", f"{repeat.label}: {error}")
            return True
        self._take(repeat, found)
        if loaded.exit_code != 0 and not found.failed:
            self.event("cell failed", f"{repeat.label}: exit code {loaded.exit_code}: {said}")
        return True

    def _take(self, repeat: Repeat, found: Harvest) -> None:
        tonight = self.tonight
        changed = changed_setup(tonight.setups, found.setups)
        if changed is not None:
            self.event("run failed", f"{repeat.label} does not count: {changed}")
            return
        tonight.setups |= found.setups
        tonight.places |= found.places
        tonight.figures += found.figures
        tonight.machine = tonight.machine or found.machine
        if found.failed:
            self.event("cell failed", f"{repeat.label}: {'; '.join(found.failed)}")
