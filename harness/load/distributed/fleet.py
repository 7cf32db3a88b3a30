"""The workers of a master: who is there, what they say, who was lost."""

# Locust's runners carry no types
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import MasterRunner

from harness import __version__
from harness.errors import UsageError, printable
from harness.live.feed import LiveFeed
from harness.load.clock import Clock
from harness.load.distributed.clock_map import boot_id
from harness.load.distributed.messages import (
    CHANNEL,
    Ack,
    Begin,
    Fault,
    Finish,
    FromMaster,
    Hello,
    Live,
    Prepare,
    Progress,
    Ready,
    Shipment,
    Welcome,
    encode,
    from_worker,
)
from harness.load.distributed.remote import Remote
from harness.load.distributed.wired import wired
from harness.load.plan import RunPlan
from harness.load.workers import Journals
from harness.records import Scalar
from harness.workload import Slo

logger = logging.getLogger(__name__)

#: A worker says hello as soon as Locust has connected it.
_HELLO_TIMEOUT_S = 15.0
#: It asks each backend who it is, each page within ten seconds.
_READY_TIMEOUT_S = 60.0
#: What is left after a run: some seconds of records, at worst behind a slow network.
_GATHER_TIMEOUT_S = 60.0
_POLL_S = 0.02
#: Workers are looked after four times a second.
_PAUSE_S = 1.0


class Fleet:
    """All workers that have said hello, and those of them that make the current run."""

    def __init__(self, environment: Environment, scenario: str, clock: Clock) -> None:
        """Listen to workers from now on."""
        assert isinstance(environment.runner, MasterRunner)  # noqa: S101 - the caller asked
        self._runner = environment.runner
        self._scenario = scenario
        self._clock = clock
        self._boot_id = boot_id()
        self._known: dict[str, Remote] = {}
        self._run: str | None = None
        self._journals: Journals | None = None
        self._live = LiveFeed()
        self._looked_s = clock.monotonic()
        #: the workers of the current run, by their number
        self.crew: list[Remote] = []
        #: called when a worker has told of its progress
        self.on_progress: Callable[[], None] = _nothing
        #: what a worker says stops the run; None while all is well
        self.fault: str | None = None
        self._runner.register_message(CHANNEL, self._on_message)

    @property
    def connected(self) -> list[str]:
        """Locust's names of the workers that it counts on now, in order of arrival."""
        clients = self._runner.clients
        ids = [node.id for node in (*clients.ready, *clients.spawning, *clients.running)]
        return sorted(ids, key=self._runner.get_worker_index)

    def muster(self, plan: RunPlan) -> None:
        """Have all connected workers ready for a plan; raises UsageError, one clear line."""
        self._run = None
        wanted = self.connected
        if not wanted:
            raise UsageError("no worker is connected; start some with --worker, then start again")
        self._wait(lambda: all(one in self._known for one in wanted), _HELLO_TIMEOUT_S)
        strangers = len([one for one in wanted if one not in self._known])
        if strangers:
            raise UsageError(
                f"{strangers} of {len(wanted)} connected workers never said what they are; "
                f"start them with the same scenario and kvknee {__version__}"
            )
        crew = [self._known[one] for one in wanted]
        for remote in crew:
            self._check(remote)
            remote.begin()
            remote.ready = None
        self.crew = crew
        backends = tuple(wired(backend) for backend in plan.backends.values())
        for index, remote in enumerate(crew):
            self.send(
                remote,
                Prepare(
                    nonce=plan.nonce,
                    worker=remote.name,
                    index=index,
                    of=len(crew),
                    workload=plan.settings.workload,
                    backends=backends,
                ),
            )
        self._wait(lambda: all(_answered(one, plan.nonce) for one in crew), _READY_TIMEOUT_S)
        for remote in crew:
            if not _answered(remote, plan.nonce) or remote.ready is None:
                raise UsageError(f"worker {remote.where} does not answer; start it again")
            if remote.ready.error is not None:
                raise UsageError(f"worker {remote.where}: {printable(remote.ready.error)}")

    def begin(self, run: str, slo: Slo, journals: Journals, live: LiveFeed) -> None:
        """The run begins; what the workers ship goes to ``journals``."""
        self._run, self._journals, self._live, self.fault = run, journals, live, None
        self._looked_s = self._clock.monotonic()
        for remote in self.crew:
            remote.heard_s = self._looked_s
        self.send_all(Begin(run=run, slo=slo, live=live.url is not None))

    def environment(self) -> dict[str, Scalar]:
        """The workers, for the manifest."""
        facts: dict[str, Scalar] = {"workers": len(self.crew)}
        for remote in self.crew:
            facts |= remote.facts()
        return facts

    def lost(self) -> list[Remote]:
        """Workers that have fallen silent since they were last asked for."""
        now = self._clock.monotonic()
        pause_s, self._looked_s = now - self._looked_s, now
        if pause_s > _PAUSE_S:
            # this process stood still, and what they said meanwhile is not read yet
            for remote in self.crew:
                remote.heard_s += pause_s
        found = [one for one in self.crew if one.waits and one.is_silent(now)]
        for remote in found:
            remote.lost = True
        return found

    def left(self) -> list[Remote]:
        """Workers that have shipped their last records: when a run goes on, too early."""
        return [one for one in self.crew if one.intake.complete]

    def gather(self) -> list[Remote]:
        """Have every living worker's last records; those that gave none are returned."""
        if self._run is None:
            return []
        self.send_all(Finish(run=self._run))
        newly: list[Remote] = []

        def gathered() -> bool:
            newly.extend(self.lost())
            return not any(one.waits for one in self.crew)

        if not self._wait(gathered, _GATHER_TIMEOUT_S):
            for remote in [one for one in self.crew if one.waits]:
                remote.lost = True
                newly.append(remote)
        # whoever comes later keeps its records and says so
        self._run = None
        return newly

    def send(self, remote: Remote, message: FromMaster) -> None:
        """Tell one worker."""
        self._runner.send_message(CHANNEL, encode(message), client_id=remote.client_id)

    def send_all(self, message: FromMaster) -> None:
        """Tell all workers of the run."""
        for remote in self.crew:
            self.send(remote, message)

    def _check(self, remote: Remote) -> None:
        hello = remote.hello
        if hello.version != __version__:
            raise UsageError(
                f"worker {remote.where} has kvknee {printable(hello.version)}, the master "
                f"{__version__}; install the same version on both"
            )
        if hello.scenario != self._scenario:
            raise UsageError(
                f"worker {remote.where} runs the scenario {printable(hello.scenario)}, the master "
                f"{self._scenario}; start both with the same file (-f)"
            )

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> bool:
        give_up_s = self._clock.monotonic() + limit_s
        while not condition():
            if self._clock.monotonic() > give_up_s:
                return False
            gevent.sleep(_POLL_S)
        return True

    def _on_message(self, msg: Any, **_: Any) -> None:
        try:
            message = from_worker(msg.data)
        except ValueError as error:
            logger.warning("a message of worker %s cannot be read: %s", msg.node_id, error)
            return
        now = self._clock.monotonic()
        if isinstance(message, Hello):
            self._hello(msg.node_id, message, now)
            return
        remote = self._known.get(msg.node_id)
        if remote is None:
            return
        remote.heard_s = now
        if isinstance(message, Ready):
            remote.ready = message
        elif message.run == self._run and remote in self.crew:
            self._of_the_run(remote, message, now)

    def _hello(self, client_id: str, hello: Hello, now: float) -> None:
        remote = self._known.get(client_id)
        if remote is None:
            name = f"w{self._runner.get_worker_index(client_id) + 1}"
            remote = Remote(client_id, name, hello, now)
            self._known[client_id] = remote
            if self._run is not None:
                logger.info("worker %s came after the run began: it waits for the next", name)
        self.send(remote, Welcome(own_s=hello.own_s, t_s=now, boot_id=self._boot_id))

    def _of_the_run(
        self, remote: Remote, message: Progress | Shipment | Live | Fault, now: float
    ) -> None:
        if isinstance(message, Shipment):
            self._take(remote, message, now)
        elif isinstance(message, Progress):
            remote.progress = message
            self.on_progress()
        elif isinstance(message, Live):
            self._live.forward(message.line, remote.name)
        else:
            self.fault = f"worker {remote.where}: {printable(message.text)}"

    def _take(self, remote: Remote, shipment: Shipment, now: float) -> None:
        """Write a shipment down, then say so."""
        taken = remote.intake.take(shipment)
        if remote.intake.damaged:
            self.fault = f"worker {remote.where} ships lines that are none of its records"
        if self._journals is not None:
            self._journals.shipped(taken.records, taken.outcomes, taken.events)
        self.send(
            remote, Ack(run=shipment.run, number=shipment.number, own_s=shipment.own_s, t_s=now)
        )


def _nothing() -> None:
    """Nobody waits for progress."""


def _answered(remote: Remote, nonce: int) -> bool:
    return remote.ready is not None and remote.ready.nonce == nonce
