"""One night: locked, measured, judged, stored in one transaction, pruned, shown.

Nothing enters the history before the end: a night that is interrupted or killed leaves its run
directories (the next nights prune them) and not one row.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from harness import __version__
from harness.errors import KvkneeError, NightlyError, UsageError
from harness.nightly import outputs
from harness.nightly.baseline import NightKey
from harness.nightly.history import History, StoredRun
from harness.nightly.job import preflight
from harness.nightly.job.compose import ComposeServers
from harness.nightly.job.harvest import Harvest, Setups, harvest, once_a_run
from harness.nightly.job.judging import exit_code, judge_night, nights_needed
from harness.nightly.job.load import Loader, LocustLoader
from harness.nightly.job.lock import Holder, held
from harness.nightly.job.plan import Repeat, groups
from harness.nightly.job.prune import RUNS, night_name, prune
from harness.nightly.job.servers import (
    GivenServers,
    LocalServers,
    Servers,
    own_home,
)
from harness.nightly.job.times import Clockwork, keep_times, known_times
from harness.nightly.job.walk import Walk
from harness.nightly.night_types import Night
from harness.nightly.suite import Suite
from harness.stack.process import stop
from harness.stack.progress import Progress

#: under the results folder
NIGHTS = "nightly"
_LEFTOVER_S = 5.0
FAILED = 3


@dataclass(frozen=True)
class NightAsk:
    """What ``kvknee nightly`` is asked; ``backends`` are running servers, None starts them."""

    suite: Suite
    results: Path
    history: Path
    home: Path
    backends: Mapping[str, str] | None = None


class MakeLoader(Protocol):
    """Makes the loader of a night."""

    def __call__(self, runs: Path, logs: Path, mark: str, home: Path) -> Loader:
        """As ``LocustLoader``."""
        ...


def _servers(ask: NightAsk, progress: Progress) -> Servers:
    if ask.backends is not None:
        return GivenServers(ask.backends)
    if ask.suite.compose is not None:
        return ComposeServers(ask.suite.compose.files, own_home(ask.home), progress)
    return LocalServers(ask.home, progress)


@dataclass(frozen=True)
class Outside:
    """What a night uses of the outside; tests put their own in."""

    wall_s: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    look: Callable[[Path], preflight.Machine] = preflight.look
    servers: Callable[[NightAsk, Progress], Servers] = _servers
    loader: MakeLoader = LocustLoader
    read: Callable[[Path, Repeat], Harvest] = harvest
    show: Callable[[Night], None] = field(default=lambda _: None)


def run_night(ask: NightAsk, progress: Progress, outside: Outside | None = None) -> Night:
    """Measure, judge and store one night; gives it with its exit code.

    Raises NightlyError (exit code 3) when no night could be judged: locked, servers that cannot
    be started, no figure at all, a history that cannot be written. KeyboardInterrupt goes on to
    the caller once all is tidied.
    """
    outside = outside or Outside()
    at_wall_s = outside.wall_s()
    nights = ask.results / NIGHTS
    holder = Holder(os.getpid(), ask.suite.suite, at_wall_s, secrets.token_hex(16))
    with contextlib.ExitStack() as locks:
        before = [locks.enter_context(held(nights / "lock", holder))]
        if ask.backends is None:
            before.append(locks.enter_context(held(own_home(ask.home) / "job.lock", holder)))
        folder = _make_folder(nights, night_name(ask.suite.suite, at_wall_s))
        one = _OneNight(ask, progress, outside, folder, holder)
        one.clean_up_after([item for item in before if item is not None])
        with _history(ask.history) as history:
            return one.run(history)


class _OneNight:
    def __init__(
        self, ask: NightAsk, progress: Progress, outside: Outside, folder: Path, holder: Holder
    ) -> None:
        self._ask = ask
        self._progress = progress
        self._outside = outside
        self._folder = folder
        self._mark = holder.mark
        self._at_wall_s = holder.at_wall_s
        self._began_s = outside.clock()
        known = known_times(folder.parent, ask.suite.suite)
        self._clockwork = Clockwork(ask.suite, known, outside.clock)
        self._servers = outside.servers(ask, progress)
        self._walk = Walk(
            self._servers,
            outside.loader(folder / RUNS, folder / "logs", holder.mark, ask.home),
            outside.read,
            ask.results,
            outside.wall_s,
            self._doing,
        )

    def clean_up_after(self, killed: list[Holder]) -> None:
        """End what is left of jobs that were killed: their loads, and the stack they started."""
        try:
            for mark in {item.mark for item in killed}:
                stop(mark, _LEFTOVER_S, time.monotonic, time.sleep)
            names = self._servers.clear()
        except KvkneeError as error:
            raise NightlyError(f"left by a nightly job that was killed: {error}") from error
        if names:
            text = f"took down {' and '.join(names)}, left by a nightly job that was killed"
            self._walk.event("preflight", text)
            self._progress.note(text)

    def run(self, history: History) -> Night:
        """The night itself; what goes wrong is kept in its outputs, too."""
        try:
            self._measure()
            night = self._judged(history)
        except BaseException as error:
            self._leave_word(error)
            raise
        try:
            outputs.write(night, self._folder)
            self._outside.show(night)
        except (OSError, KvkneeError) as error:
            raise NightlyError(
                f"{self._folder}: the night is stored, its reports are not: {error}"
            ) from error
        except KeyboardInterrupt as error:
            name = self._folder.name
            error.add_note(f"the night is stored as {name}, its reports may be missing")
            raise
        return night

    def _measure(self) -> None:
        machine = self._outside.look(self._folder)
        self._walk.event("preflight", preflight.facts(machine))
        for text in preflight.findings(machine):
            self._walk.event("preflight", text)
            self._progress.note(text)
        for group in groups(self._ask.suite):
            self._walk.group(group)
        tonight = self._walk.tonight
        if not tonight.measured:
            said = [event.text for event in tonight.events if event.kind != "preflight"]
            raise NightlyError(f"nothing could be measured: {'; '.join(said) or 'no figure'}")
        keep_times(self._folder.parent, self._ask.suite.suite, tonight.runs)

    def _judged(self, history: History) -> Night:
        suite, tonight = self._ask.suite, self._walk.tonight
        figures = once_a_run(tonight.figures)
        key = NightKey(suite.suite, self._folder.name, self._at_wall_s)
        setups = self._setups()
        said = judge_night(history, suite, key, setups, figures, tonight.places)
        row = StoredRun(key.run_id, key.suite, key.at_wall_s, __version__)
        try:
            history.store(row, setups, figures, said.verdicts)
        except (UsageError, sqlite3.Error) as error:
            raise NightlyError(
                f"{self._ask.history}: the night cannot be stored: {error}"
            ) from error
        self._say_what_is_missing(nights_needed(said.judged, suite))
        self._prune()
        night = self._night(exit_code(said.judged))
        return replace(night, judged=said.judged, setup_changes=said.setup_changes)

    def _setups(self) -> Setups:
        """Those of the night; a server in a container is another than one of ``kvknee up``."""
        found = self._walk.tonight.setups
        if self._ask.suite.compose is None or self._ask.backends is not None:
            return found
        return {name: {**facts, "asked.servers": "compose"} for name, facts in found.items()}

    def _say_what_is_missing(self, nights: int | None) -> None:
        if nights is None:
            return
        rest = "the next night is judged" if nights == 0 else f"{nights} more are needed"
        self._progress.note(f"stored as {self._folder.name}: it seeds the baseline; {rest}")

    def _prune(self) -> None:
        suite = self._ask.suite
        nights, tonight = self._folder.parent, self._folder.name
        try:
            removed = prune(nights, suite.suite, tonight, self._at_wall_s, suite.keep)
        except OSError as error:
            # the night is stored: what cannot be tidied must not fail it
            self._walk.event("pruned", f"old run directories are left as they are: {error}")
            return
        if removed:
            self._walk.event("pruned", f"run directories: {', '.join(sorted(removed))}")

    def _leave_word(self, error: BaseException) -> None:
        """Outputs of a night that came to nothing: they tell why, and judge nothing."""
        if isinstance(error, KeyboardInterrupt):
            self._walk.event("interrupted", "the night was ended before its end; nothing is stored")
        else:
            self._walk.event("run failed", str(error) or type(error).__name__)
        with contextlib.suppress(OSError, KvkneeError):
            outputs.write(self._night(FAILED), self._folder)

    def _night(self, code: int) -> Night:
        tonight = self._walk.tonight
        return Night(
            night_id=self._folder.name,
            suite=self._ask.suite.suite,
            at_wall_s=self._at_wall_s,
            seconds=self._outside.clock() - self._began_s,
            kvknee_version=__version__,
            machine=tonight.machine or "a machine that is not known",
            runs=tuple(tonight.runs),
            judged=(),
            events=tuple(tonight.events),
            setup_changes=(),
            exit_code=code,
            limits=self._ask.suite.limits,
        )

    def _doing(self, repeat: Repeat) -> None:
        self._progress.note(f"{repeat.label}; {self._clockwork.left(repeat)}")


@contextlib.contextmanager
def _history(path: Path) -> Iterator[History]:
    try:
        with History.opened(path) as history:
            history.require_whole()
            yield history
    except UsageError as error:
        raise NightlyError(str(error)) from error


def _make_folder(nights: Path, name: str) -> Path:
    """The night's own folder, new; two nights of one second are told apart by a number."""
    path, number = nights / name, 1
    try:
        while True:
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                number += 1
                path = nights / f"{name}-{number}"
        for part in (RUNS, "logs"):
            (path / part).mkdir()
    except OSError as error:
        raise NightlyError(f"--results-dir: {path} cannot be made ({error.strerror})") from error
    return path
