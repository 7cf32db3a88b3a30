"""Joins a scenario to Locust: options, start, levels, end, exit code.

Locust's order in a headless run: options are parsed, ``init`` fires, the shape is asked
for users once a second, ``test_start`` fires, users come and go, the shape says None,
``test_stop`` and ``quitting`` fire. In the web page each press of Start repeats the part
from the shape on; each is a run of its own.
"""

# Locust's event hooks carry no types
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import gevent
from locust import LoadTestShape, User, constant, task
from locust.env import Environment
from locust.event import Events
from locust.exception import StopUser
from locust.runners import STATE_RUNNING, Runner

from harness.errors import KvkneeError, UsageError, printable
from harness.live import feed
from harness.live.feed import LiveFeed
from harness.load.clock import Clock, SystemClock
from harness.load.options import add_options, option_values
from harness.load.plan import PolicyMaker, RunPlan, make_plan
from harness.load.report_row import stats_rows
from harness.load.run import Run
from harness.load.session import Session
from harness.load.settings import AskKind, LoadSettings, read_settings
from harness.load.walk import WalkMaker
from harness.records import Loop, RequestRecord

logger = logging.getLogger(__name__)

#: Locust complains about more; a level of 1,000 users takes 10 s to gather.
_MAX_SPAWN_RATE = 100
#: While nothing is decided: no users.
_IDLE = (0, 1.0)


class RequestFailedError(Exception):
    """Shown by Locust as the reason of a failure."""


class LocustScenario:
    """A scenario as Locust sees it; the locustfile makes one and attaches it."""

    def __init__(
        self,
        name: str,
        make_policy: PolicyMaker,
        make_walk: WalkMaker = Session,
        clock: Clock | None = None,
        kind: AskKind = "levels",
    ) -> None:
        """``name`` stands in the run's id and workload; ``make_policy`` is what is asked.

        ``make_walk`` is how it is asked: by default in a closed loop. ``kind`` decides
        which options there are.
        """
        self.name = name
        self._make_policy = make_policy
        self._make_walk = make_walk
        self._kind = kind
        self._clock = clock or SystemClock()
        self._plan: RunPlan | None = None
        self._refused = False
        self._spawning = False
        self._last: Run | None = None
        self._live = LiveFeed()
        self.run: Run | None = None

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
        if self.run is None or runner is None:
            return _IDLE
        if not self._spawning:
            # a new number of users would cut off Locust's first, idle spawning
            if runner.state != STATE_RUNNING:
                return _IDLE
            self._spawning = True
        wanted = self.run.walk.wanted_users
        return None if wanted is None else (wanted, min(wanted, _MAX_SPAWN_RATE))

    def _on_parser(self, parser: argparse.ArgumentParser, **_: Any) -> None:
        add_options(parser, self._kind)
        _refuse_distributed(parser)

    def _on_init(self, environment: Environment, **_: Any) -> None:
        """Say what is wrong before any load, and before a web page is up."""
        # one line per HTTP request is noise here
        logging.getLogger("httpx").setLevel(logging.WARNING)
        options = environment.parsed_options
        try:
            plan = self._make_plan(environment)
            metrics = plan.settings.metrics
            self._live = feed.start(metrics.host, metrics.port, named=metrics.named)
        except UsageError as error:
            sys.stderr.write(f"error: {printable(str(error))}\n")
            raise SystemExit(error.exit_code) from error
        if options is not None and options.headless:
            self._plan = plan
            # until a run has ended well
            environment.process_exit_code = 1
            _treat_sigterm_as_ctrl_c()

    def _on_test_start(self, environment: Environment, **_: Any) -> None:
        if self.run is not None:
            return
        plan, self._plan = self._plan, None
        # until this run has ended well
        environment.process_exit_code = 1
        try:
            plan = plan or self._make_plan(environment)
            self.run = Run(
                plan, self._make_walk, self._clock, self._shower(environment), self._live
            )
        except KvkneeError as error:
            logger.error("%s", printable(str(error)))
            self._refused = True
            environment.process_exit_code = error.exit_code
        except Exception:
            # without a run the shape would wait for ever
            logger.exception("the run could not start")
            self._refused = True

    def _on_test_stopping(self, **_: Any) -> None:
        if self.run is not None:
            self.run.walk.close()

    def _on_test_stop(self, environment: Environment, **_: Any) -> None:
        run = self.run
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

    def _shower(self, environment: Environment) -> Callable[[RequestRecord], None]:
        """Feeds Locust's statistics."""
        loop: Loop = "closed" if self._kind == "levels" else "open"

        def show(record: RequestRecord) -> None:
            for row in stats_rows(record, loop):
                environment.events.request.fire(
                    request_type=row.request_type,
                    name=row.name,
                    response_time=row.response_time_ms,
                    response_length=row.response_length,
                    exception=RequestFailedError(row.failure) if row.failure else None,
                    context={},
                )

        return show

    def _make_plan(self, environment: Environment) -> RunPlan:
        settings = self._settings(environment)
        return make_plan(settings, self._make_policy, self._clock)

    def _settings(self, environment: Environment) -> LoadSettings:
        values = option_values(environment.parsed_options, self._kind)
        return read_settings(self.name, values, self._kind)


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
        run = self.scenario.run
        if run is None:
            raise StopUser
        self._walk = run.walk
        self._member = run.walk.join()

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


def _treat_sigterm_as_ctrl_c() -> None:
    """Let SIGTERM end a headless run as Ctrl-C does.

    Locust takes care of it only once a shape's run is over; until then the process would
    just die. The exception goes to the main greenlet, which waits for the run.
    """
    hub = gevent.get_hub()
    # the greenlet in which the hub was made: the main one
    main: Any = hub.parent
    gevent.signal_handler(signal.SIGTERM, hub.loop.run_callback, main.throw, KeyboardInterrupt)


def _refuse_distributed(parser: argparse.ArgumentParser) -> None:
    """Refuse Locust's distributed modes as soon as the options are parsed.

    A worker would wait for its master before any event fires, so there is no later place.
    """
    parse = parser.parse_args

    def parse_args(*args: Any, **kwargs: Any) -> argparse.Namespace:
        options: argparse.Namespace = parse(*args, **kwargs)
        for name in ("processes", "master", "worker"):
            if getattr(options, name, None):
                parser.error(
                    f"--{name}: this scenario measures from one process so far; leave it out"
                )
        return options

    parser.parse_args = parse_args  # type: ignore[assignment, method-assign]
