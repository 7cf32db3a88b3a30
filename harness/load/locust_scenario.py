"""Joins a scenario to Locust: options, start, levels, end, exit code.

Locust's order in a headless run: options are parsed, ``init`` fires, the shape is asked
for users once a second, ``test_start`` fires, users come and go, the shape says None,
``test_stop`` and ``quitting`` fire. In the web page each press of Start repeats the part
from the shape on; each is a run of its own.

With ``--processes`` or ``--master`` all of this happens on the master, whose users lie on
its workers; a worker process only obeys (``harness.load.distributed``).
"""

# Locust's event hooks carry no types
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from locust import LoadTestShape, User, constant, task
from locust.env import Environment
from locust.event import Events
from locust.exception import StopUser
from locust.runners import STATE_RUNNING, MasterRunner, Runner, WorkerRunner

from harness.errors import KvkneeError, UsageError, printable
from harness.live import feed
from harness.live.feed import LiveFeed
from harness.load.asked import asked_settings
from harness.load.clock import Clock, SystemClock
from harness.load.crew import Crew
from harness.load.ctrl_c import ctrl_c_to_main_greenlet, sigterm_to_main_greenlet
from harness.load.distributed.master import Master
from harness.load.distributed.worker import Worker
from harness.load.locust_parts import refuse_distributed, shower
from harness.load.options import add_options, option_values
from harness.load.plan import PolicyMaker, RunPlan, make_plan
from harness.load.run import Run
from harness.load.session import WORKER, Session
from harness.load.settings import read_api_key
from harness.load.user_numbers import UserNumbers
from harness.load.walk import Course, Walk, WalkMaker
from harness.load.workload import AskKind
from harness.records import Loop, RequestRecord, RunEvent

logger = logging.getLogger(__name__)

#: While nothing is decided: no users.
_IDLE = (0, 1.0)
_LOOPBACK = "127.0.0.1"


class LocustScenario:
    """A scenario as Locust sees it; the locustfile makes one and attaches it."""

    def __init__(
        self,
        name: str,
        make_policy: PolicyMaker,
        make_walk: WalkMaker = Session,
        clock: Clock | None = None,
        kind: AskKind = "levels",
        complete: Callable[[RunPlan, Clock], RunPlan] | None = None,
    ) -> None:
        """``name`` stands in the run's id and workload; ``make_policy`` is what is asked.

        ``make_walk`` is how it is asked: by default in a closed loop, which several
        processes can share. ``kind`` decides which options there are. ``complete`` has the
        last word on a plan, may measure for it and may show it.
        """
        self.name = name
        self._make_policy = make_policy
        self._make_walk = make_walk
        self._kind = kind
        self._complete = complete
        self._clock: Clock = clock or SystemClock()
        #: of the run: ahead of the machine's where a run goes on after a restart
        self._run_clock = self._clock
        self._plan: RunPlan | None = None
        self._refused = False
        self._spawning = False
        self._numbers = UserNumbers()
        self._last: Run | None = None
        self._live = LiveFeed()
        self._master: Master | None = None
        self._worker: Worker | None = None
        self._walk: Walk | None = None
        self.run: Run | None = None

    @property
    def walk(self) -> Walk | Crew | None:
        """What the users of this process take part in; None while there is no run."""
        if self._worker is not None:
            return self._worker.crew
        return self._walk if self.run is not None else None

    def attach(self, events: Events) -> None:
        """Listen to Locust."""
        events.init_command_line_parser.add_listener(self._on_parser)
        events.init.add_listener(self._on_init)
        events.test_start.add_listener(self._on_test_start)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(self._on_test_stop)
        events.quitting.add_listener(self._on_quitting)
        events.quit.add_listener(self._on_quit)

    def users(self, runner: Runner | None) -> tuple[int, float] | None:
        """How many users there should be now, and how fast; None ends the test."""
        if self._refused:
            self._refused = False
            return None
        if self._master is not None and not self._master.fleet.connected and self.run is None:
            logger.error("no worker is connected; start some with --worker, then start again")
            return None
        if self.run is None or runner is None:
            return _IDLE
        if not self._spawning:
            # a new number of users would cut off Locust's first, idle spawning
            if runner.state != STATE_RUNNING:
                return _IDLE
            self._spawning = True
        wanted = self.run.course.wanted_users
        if wanted is None:
            return None
        missing = self.run.course.waits_for_users and self._master is None
        return self._numbers.tick(wanted, missing=missing)

    def _on_parser(self, parser: argparse.ArgumentParser, **_: Any) -> None:
        add_options(parser, self._kind)
        # Locust's own default is every interface; for workers elsewhere it must be said
        parser.set_defaults(master_bind_host=_LOOPBACK)
        if self._make_walk is not Session or self._kind in ("matrix", "soak", "knee"):
            refuse_distributed(parser)

    def _on_init(self, environment: Environment, **_: Any) -> None:
        """Say what is wrong before any load, and before a web page is up."""
        # one line per HTTP request is noise here
        logging.getLogger("httpx").setLevel(logging.WARNING)
        ctrl_c_to_main_greenlet()
        options = environment.parsed_options
        if isinstance(environment.runner, WorkerRunner):
            self._start_worker(environment)
            return
        if isinstance(environment.runner, MasterRunner):
            self._master = Master(environment, self.name, self._clock)
        try:
            plan = self._make_plan(environment)
            if plan.only_shown:
                raise SystemExit(0)
            metrics = plan.settings.metrics
            self._live = feed.start(metrics.host, metrics.port, named=metrics.named)
        except KvkneeError as error:
            sys.stderr.write(f"error: {printable(str(error))}\n")
            raise SystemExit(error.exit_code) from error
        if options is not None and options.headless:
            self._plan = plan
            # until a run has ended well
            environment.process_exit_code = 1
            sigterm_to_main_greenlet()

    def _start_worker(self, environment: Environment) -> None:
        """Be a worker: options, servers and levels are the master's."""
        try:
            values = option_values(environment.parsed_options, self._kind)
            key = read_api_key(str(values["api_key"]))
        except UsageError as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(error.exit_code) from error
        # open loops are not shared between processes
        show = self._shower(environment, "closed")
        self._worker = Worker(environment, self.name, self._clock, key, show)

    def _on_test_start(self, environment: Environment, **_: Any) -> None:
        if self.run is not None or self._worker is not None:
            return
        if self._master is not None:
            self._master.veil()
        plan, self._plan = self._plan, None
        # until this run has ended well
        environment.process_exit_code = 1
        try:
            plan = plan or self._make_plan(environment)
            if plan.only_shown:
                self._refused = True
                return
            if self._master is not None:
                self._master.fleet.muster(plan)
            self.run = self._make_run(plan, environment)
        except KvkneeError as error:
            logger.error("%s", printable(str(error)))
            self._refused = True
            environment.process_exit_code = error.exit_code
        except Exception:
            # without a run the shape would wait for ever
            logger.exception("the run could not start")
            self._refused = True

    def _make_run(self, plan: RunPlan, environment: Environment) -> Run:
        if self._master is None:
            resume = plan.settings.resume
            self._run_clock = self._clock if resume is None else resume.clock(self._clock)
            show = self._shower(environment, plan.settings.workload.loop)
            return Run(plan, self._course, self._run_clock, show, self._live)
        fleet = self._master.fleet
        return Run(plan, self._master.course, self._clock, _shown_elsewhere, self._live, fleet)

    def _course(
        self,
        plan: RunPlan,
        run: str,
        *,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
    ) -> Course:
        """The walk of this process's own users."""
        self._walk = self._make_walk_of(plan, run, emit, record)
        return self._walk

    def _make_walk_of(
        self,
        plan: RunPlan,
        run: str,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
    ) -> Walk:
        """Ready to start with its first level; ``run`` is the name of the run's directory."""
        return self._make_walk(
            plan.policy,
            plan.settings.workload,
            plan.backends,
            self._run_clock,
            emit=emit,
            record=record,
            worker=WORKER if plan.settings.resume is None else plan.settings.resume.worker,
        )

    def _on_test_stopping(self, **_: Any) -> None:
        if self.run is not None:
            self.run.course.close()

    def _on_test_stop(self, environment: Environment, **_: Any) -> None:
        run = self.run
        if self._master is not None:
            self._master.unveil()
        if run is None:
            return
        run.finish()
        environment.process_exit_code = run.exit_code
        self.run, self._spawning = None, False
        options = environment.parsed_options
        if options is not None and options.headless:
            self._last = run
        else:
            run.show_report()

    def _on_quitting(self, environment: Environment, **_: Any) -> None:
        # on SIGTERM this comes before the users are stopped
        if self.run is not None and environment.runner is not None:
            environment.runner.stop()
            self._on_test_stop(environment)

    def _on_quit(self, **_: Any) -> None:
        # after Locust's own tables, so that the report is what the user sees last
        if self._last is not None:
            self._last.show_report()
            self._last = None
        self._live.close()

    def _shower(self, environment: Environment, loop: Loop) -> Callable[[RequestRecord], None]:
        return shower(environment, loop, lengths=self._kind == "matrix")

    def _make_plan(self, environment: Environment) -> RunPlan:
        settings = asked_settings(self.name, environment.parsed_options, self._kind)
        loads = self._master is None
        plan = make_plan(settings, self._make_policy, self._clock, loads=loads)
        return plan if self._complete is None else self._complete(plan, self._clock)


class ScenarioShape(LoadTestShape):
    """Gives Locust the number of users that the current level needs."""

    abstract = True
    scenario: ClassVar[LocustScenario]

    def tick(self) -> tuple[int, float] | None:
        """Asked by Locust once a second."""
        return self.scenario.users(self.runner)


class ScenarioUser(User):
    """One user of the walk: of a closed loop it makes request after request, as the session
    gives turns; an open loop has one, which starts all requests.
    """

    abstract = True
    scenario: ClassVar[LocustScenario]
    wait_time = constant(0)

    def on_start(self) -> None:
        """Join the run."""
        walk = self.scenario.walk
        if walk is None:
            raise StopUser
        self._walk = walk
        self._member = walk.join()

    def on_stop(self) -> None:
        """Leave it."""
        if hasattr(self, "_member"):
            self._walk.leave(self._member)

    @task
    def requests(self) -> None:
        """Make requests until the session has no more turns for this user."""
        while self._walk.request(self._member):
            pass
        raise StopUser


def _shown_elsewhere(_: RequestRecord) -> None:
    """A master makes no requests; its workers feed Locust's statistics."""
