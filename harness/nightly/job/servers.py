"""The servers of a night: started for it, or running already.

What the night starts has a home of its own, ``<home>/fleet/nightly``, with the models of
``<home>``. So a stack in there is always a nightly job's, and one that a killed job left behind is
taken down by the next; the stack of ``kvknee up`` is used when it is up as the suite asks, and
never stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from harness.errors import KvkneeError, NightlyError, StackError, UsageError
from harness.nightly.job.leftovers import take_down
from harness.nightly.job.plan import Group
from harness.stack import local
from harness.stack.fleet import free_ports, share_models
from harness.stack.health import answers, reachable
from harness.stack.local import Runtime
from harness.stack.options import BACKENDS, UpOptions, plan_stack
from harness.stack.progress import Progress
from harness.stack.state import FLEET, StackState, read_state

NIGHTLY = "nightly"


class Servers(Protocol):
    """What the walk through a night needs of its servers."""

    @property
    def restartable(self) -> bool:
        """Whether a dead one can be started again."""
        ...

    def start(self, group: Group) -> Mapping[str, str]:
        """URLs by backend; raises StackError when they do not start, NightlyError."""
        ...

    def dead(self) -> tuple[str, ...]:
        """Names of those that have died or do not answer."""
        ...

    def restart(self) -> Mapping[str, str]:
        """All of them anew, at other URLs perhaps; raises StackError."""
        ...

    def stop(self) -> None:
        """Stop what ``start`` has started."""
        ...

    def clear(self) -> tuple[str, ...]:
        """Take down what a killed job left; their names. Raises KvkneeError."""
        ...


class GivenServers:
    """Servers that somebody else runs: never started, never stopped."""

    def __init__(self, urls: Mapping[str, str], probe: Callable[[str], bool] = reachable) -> None:
        self._urls = urls
        self._probe = probe
        self._used: Mapping[str, str] = {}

    @property
    def restartable(self) -> bool:
        """Never: they are not ours."""
        return False

    def start(self, group: Group) -> Mapping[str, str]:
        """Those that the group's runs name."""
        self._used = {name: self._urls[name] for name in group.backends}
        return self._used

    def dead(self) -> tuple[str, ...]:
        """Those that do not answer."""
        return tuple(name for name, url in self._used.items() if not self._probe(url))

    def restart(self) -> Mapping[str, str]:
        """Never asked: they are not ours."""
        raise StackError("servers that were named with --backends are not restarted")

    def stop(self) -> None:
        """They go on."""

    def clear(self) -> tuple[str, ...]:
        """Nothing: whose they are is not known."""
        return ()


class LocalServers:
    """The local stack: the one that is up as asked, or one started for the night."""

    def __init__(self, home: Path, progress: Progress, runtime: Runtime | None = None) -> None:
        self._home = home
        self._own = own_home(home)
        self._progress = progress
        self._runtime = runtime
        self._options: UpOptions | None = None
        self._state: StackState | None = None
        self._wanted: tuple[str, ...] = ()
        self._urls: Mapping[str, str] = {}

    @property
    def restartable(self) -> bool:
        """What the night did not start it does not restart."""
        return self._options is not None

    def start(self, group: Group) -> Mapping[str, str]:
        """Use the home's stack, or start one."""
        unknown = sorted(set(group.backends) - set(BACKENDS))
        if unknown:
            raise NightlyError(
                f"{' and '.join(unknown)} cannot be started here; name running servers with "
                f"--backends name=url,... (started are {' and '.join(BACKENDS)})"
            )
        self._wanted = group.backends
        asked = UpOptions(
            home=self._home,
            model=group.model,
            backends=",".join(group.backends),
            kv_budget=group.kv_budget,
        )
        state = _running(self._home)
        if state is not None:
            self._options, self._state = None, state
            self._require_same(asked, state)
            self._progress.note(f"using the stack of {self._home}, which is up")
            return self._found()
        share_models(self._home, self._own)
        self._options = replace(asked, home=self._own)
        return self._up()

    def dead(self) -> tuple[str, ...]:
        """Those whose process ended, or that do not answer."""
        if self._state is None:
            return self._wanted
        backends = [b for b in self._state.backends if b.name in self._wanted]
        return tuple(b.name for b in backends if not (b.is_running() and answers(b.url)))

    def restart(self) -> Mapping[str, str]:
        """The whole stack: what one server was by the other's side, it is again."""
        self._state = None
        local.down(self._own, self._runtime)
        return self._up()

    def stop(self) -> None:
        """Take down what was started here."""
        if self._options is not None:
            self._progress.update("stopping the servers")
            local.down(self._own, self._runtime)
        self._options = self._state = None

    def clear(self) -> tuple[str, ...]:
        """What a killed job left, of either kind."""
        return take_down(self._own, self._runtime)

    def _up(self) -> Mapping[str, str]:
        assert self._options is not None  # noqa: S101
        paged, contiguous = free_ports(2)
        options = replace(self._options, paged_port=paged, contiguous_port=contiguous)
        try:
            self._state = local.up(options, self._progress, self._runtime).state
        except UsageError as error:
            # bad input to `kvknee up`; here the suite or the machine is not as it must be
            raise NightlyError(f"the stack cannot be started: {error}") from error
        return self._found()

    def _found(self) -> Mapping[str, str]:
        assert self._state is not None  # noqa: S101
        urls = {backend.name: backend.url for backend in self._state.backends}
        return {name: urls[name] for name in self._wanted}

    def _require_same(self, asked: UpOptions, state: StackState) -> None:
        """Raise NightlyError unless the running stack is what the group asks for."""
        missing = [name for name in self._wanted if name not in {b.name for b in state.backends}]
        different = [f"no {name}" for name in missing]
        try:
            runtime = self._runtime or local.this_machine()
            wanted = plan_stack(asked, runtime.gpu_present()).settings()
        except KvkneeError as error:
            raise NightlyError(str(error)) from error
        for name in {**wanted, **state.settings}:
            if not name.endswith("_port") and name != "backends":
                up_with, want = state.settings.get(name), wanted.get(name)
                if up_with != want:
                    different.append(f"{name}={up_with} (the suite asks for {want})")
        if different:
            raise NightlyError(
                f"the stack of {self._home} is up with {', '.join(different)}; run `kvknee down` "
                "first, or measure it as it is with --backends name=url,..."
            )


def own_home(home: Path) -> Path:
    """Where the stacks of nightly jobs live."""
    return home / FLEET / NIGHTLY


def _running(home: Path) -> StackState | None:
    """The stack of ``kvknee up`` when it is up; raises NightlyError when part of it died."""
    try:
        state = read_state(home)
    except UsageError as error:
        raise NightlyError(str(error)) from error
    if state is None:
        return None
    running = [backend for backend in state.backends if backend.is_running()]
    if not running:
        return None
    if not state.ready or len(running) < len(state.backends):
        raise NightlyError(f"the stack of {home} is only partly up; run `kvknee down` first")
    return state
