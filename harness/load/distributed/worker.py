"""A worker's end: joins Locust's worker to a run that the master leads."""

# Locust's runners carry no types
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import gevent
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import WorkerRunner

from harness import __version__
from harness.errors import KvkneeError, printable
from harness.load.clock import Clock
from harness.load.crew import Crew
from harness.load.distributed.clock_map import ClockMap, boot_id
from harness.load.distributed.messages import (
    CHANNEL,
    Ack,
    Begin,
    EnterLevel,
    Fault,
    Finish,
    FromMaster,
    FromWorker,
    Hello,
    Host,
    Obey,
    Prepare,
    Ready,
    StartUsers,
    Welcome,
    encode,
    from_master,
)
from harness.load.distributed.wired import prepared
from harness.load.distributed.worker_run import WorkerRun
from harness.load.preflight import PreparedBackend
from harness.load.quiet import QuietProcess
from harness.records import RequestRecord

logger = logging.getLogger(__name__)

#: Round trips before the first run; the narrowest tells the clock's offset.
_GREETINGS = 10
_GREETING_INTERVAL_S = 0.05
#: until the master listens, and so that it knows of a worker that it forgot
_GREETING_RETRY_S = 1.0


class Worker:
    """One worker process, run after run."""

    def __init__(
        self,
        environment: Environment,
        scenario: str,
        clock: Clock,
        api_key: str | None,
        show: Callable[[RequestRecord], None],
    ) -> None:
        """Say hello to the master, and obey it from now on."""
        assert isinstance(environment.runner, WorkerRunner)  # noqa: S101 - the caller asked
        self._environment = environment
        self._runner = environment.runner
        self._scenario = scenario
        self._clock = clock
        self._api_key = api_key
        self._show = show
        self._host = Host(name=socket.gethostname(), pid=os.getpid(), boot_id=boot_id())
        self._map = ClockMap(same_kernel=False)
        self._plan: Prepare | None = None
        self._backends: dict[str, PreparedBackend] = {}
        self._quiet: QuietProcess | None = None
        self._run: WorkerRun | None = None
        self._finishing: gevent.Greenlet[..., None] | None = None
        self._runner.register_message(CHANNEL, self._on_message)
        # registered after Locust's own, so it comes first: the last records go out before
        # the word that this worker quits
        environment.events.quitting.add_listener(self._on_quitting)
        environment.events.test_stopping.add_listener(self._on_test_stopping)
        gevent.spawn(self._greet)

    @property
    def crew(self) -> Crew | None:
        """The users of the current run."""
        return self._run.crew if self._run is not None else None

    def _greet(self) -> None:
        """Says hello until the master has answered often enough to know its clock."""
        while self._map.trips < _GREETINGS:
            self._send(
                Hello(
                    version=__version__,
                    scenario=self._scenario,
                    host=self._host,
                    own_s=self._clock.monotonic(),
                )
            )
            gevent.sleep(_GREETING_INTERVAL_S if self._map.trips else _GREETING_RETRY_S)

    def _send(self, message: FromWorker) -> None:
        try:
            self._runner.send_message(CHANNEL, encode(message))
        except RPCError as error:
            logger.error("the master cannot be told: %s", error)

    def _on_message(self, msg: Any, **_: Any) -> None:
        try:
            message = from_master(msg.data)
        except ValueError as error:
            logger.warning("a message of the master cannot be read: %s", error)
            return
        if isinstance(message, Welcome):
            self._welcome(message)
        elif isinstance(message, Prepare):
            # it asks servers: the master must not be kept waiting for an answer meanwhile
            gevent.spawn(self._prepare, message)
        elif isinstance(message, Begin):
            self._begin(message)
        else:
            self._of_the_run(message)

    def _welcome(self, message: Welcome) -> None:
        if not self._map.trips:
            same = self._host.boot_id is not None and self._host.boot_id == message.boot_id
            self._map = ClockMap(same_kernel=same)
        self._map.answered(message.own_s, message.t_s, self._clock.monotonic())

    def _prepare(self, plan: Prepare) -> None:
        """Reach the backends and say so, or why not."""
        error = None
        try:
            self._backends = prepared(plan, self._api_key)
            self._plan = plan
        except KvkneeError as fault:
            error = printable(str(fault))
            # its own exit code is 1, the master's says what kind of error it was
            self._environment.process_exit_code = 1
            logger.error("%s", error)
        if self._quiet is None:
            self._quiet = QuietProcess()
        offset = self._map.offset()
        self._send(
            Ready(
                nonce=plan.nonce,
                error=error,
                clock_offset_s=offset.offset_s,
                clock_uncertainty_s=offset.uncertainty_s,
                nice=self._quiet.nice,
            )
        )

    def _begin(self, begin: Begin) -> None:
        if self._plan is None:
            return
        # until it has ended well
        self._environment.process_exit_code = 1
        try:
            self._run = WorkerRun(
                self._plan,
                begin,
                self._backends,
                self._clock,
                self._map,
                self._send,
                self._show,
                self._master_lost,
            )
        except KvkneeError as error:
            logger.error("%s", error)
            self._send(Fault(run=begin.run, text=str(error)))

    def _of_the_run(self, message: FromMaster) -> None:
        run = self._run
        if run is None or not isinstance(message, EnterLevel | StartUsers | Obey | Ack | Finish):
            return
        if message.run != run.run:
            return
        if isinstance(message, Ack):
            run.acknowledged(message)
        elif isinstance(message, Finish):
            # it waits for acknowledgements, which come through the caller
            gevent.spawn(self._finish)
        elif isinstance(message, EnterLevel):
            run.enter(message)
        elif isinstance(message, StartUsers):
            run.start(message)
        else:
            run.obey(message)

    def _finish(self) -> None:
        """End the run on this worker; a second caller waits until the first is done."""
        if self._finishing is None:
            self._finishing = gevent.spawn(self._finish_once)
        self._finishing.join()

    def _finish_once(self) -> None:
        run = self._run
        if run is not None:
            run.crew.close()
            # users in mid-request are cut off, and their records say so
            self._runner.stop()
            if run.finish():
                self._environment.process_exit_code = 0
            self._run = None
        if self._quiet is not None:
            self._quiet.end()
            self._quiet = None
        self._finishing = None

    def _on_test_stopping(self, **_: Any) -> None:
        if self._run is not None:
            self._run.crew.close()

    def _on_quitting(self, **_: Any) -> None:
        self._finish()

    def _master_lost(self) -> None:
        logger.error("the master does not answer any more; this worker ends")
        gevent.spawn(self._runner.quit)
