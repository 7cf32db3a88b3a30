"""One run from its directory to its report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import gevent
import httpx
import msgspec
from gevent.event import Event
from rich.console import Console

from harness import __version__
from harness.errors import JournalError, KvkneeError
from harness.live import feed
from harness.live.feed import LiveFeed
from harness.live.snapshot import run_facts
from harness.load import machine
from harness.load.backend_watch import BackendWatch
from harness.load.clock import Clock
from harness.load.ctrl_c import ctrl_c_waits
from harness.load.plan import RunPlan
from harness.load.quiet import QuietProcess
from harness.load.recorder import Recorder
from harness.load.self_check import watch_client
from harness.load.server_facts import answers
from harness.load.session import WORKER
from harness.load.stamped_socket import StampKeeper
from harness.load.walk import Walk, WalkMaker
from harness.observe import scraper_handle
from harness.observe.prometheus import fetch_run
from harness.plan.fingerprint import fingerprint
from harness.records import SCHEMA_VERSION, Manifest, RequestRecord, RunEvent, Scalar
from harness.rundir import RunDir

if TYPE_CHECKING:
    from harness.analysis.summary_types import RunSummary

SCRAPE_INTERVAL_S = 1.0
_TICK_S = 0.25
#: Seldom enough to be no load on a server, or on one that shares its machine.
_IDLE_TICK_S = 2.0
_HEALTH_TIMEOUT_S = 2.0
#: A level that has not had its users for this long never will.
_USERS_TIMEOUT_S = 60.0

Status = Literal["running", "complete", "interrupted", "failed"]
logger = logging.getLogger(__name__)


class Run:
    """A run in progress. ``finish`` must be called, whatever happens, and is idempotent."""

    def __init__(
        self,
        plan: RunPlan,
        make_walk: WalkMaker,
        clock: Clock,
        show: Callable[[RequestRecord], None],
        live: LiveFeed,
    ) -> None:
        """Make the run directory and start to watch; raises KvkneeError.

        ``show`` is called with every record once it is kept; ``live`` is fed with all that
        happens.
        """
        self._plan = plan
        self._clock = clock
        self._show = show
        self._live = live
        self._failed: str | None = None
        self._summary: RunSummary | None = None
        self._finishing = False
        self._finished = Event()
        t0_s, t0_wall_s = clock.monotonic(), clock.wall()
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(t0_wall_s))
        scenario = plan.settings.workload.scenario
        self.run_dir = RunDir.create(plan.settings.results_dir, f"{name}-{scenario}")
        self._quiet = QuietProcess()
        self._manifest = self._first_manifest(t0_s, t0_wall_s)
        self.run_dir.write_manifest(self._manifest)
        self.recorder = Recorder(self.run_dir)
        live.begin(run_facts(self._manifest), WORKER, t0_wall_s - t0_s)
        self._event("run_start")
        self._stamps = StampKeeper()
        self._scraper = scraper_handle.start(
            self.run_dir.path,
            plan.targets,
            SCRAPE_INTERVAL_S,
            plan.settings.api_key,
            plan.pids,
        )
        self.walk: Walk = make_walk(
            plan.policy,
            plan.settings.workload,
            plan.backends,
            clock,
            emit=self._tell,
            record=self._keep,
        )
        self._greenlets: list[gevent.Greenlet[..., None]] = [
            gevent.spawn(watch_client, clock, lambda: self.walk.in_flight, self._tell),
            gevent.spawn(self._housekeeping),
            gevent.spawn(self._look_after_idle),
            gevent.spawn(self._publish),
        ]

    @property
    def exit_code(self) -> int:
        """0 for a complete run with few enough failures and a report, else 1."""
        complete = self._manifest.status == "complete" and self._summary is not None
        return 0 if complete and not self._too_many_failures() else 1

    def finish(self) -> None:
        """End the run, close its directory, build the report.

        A second caller waits until the first is done.
        """
        if self._finishing:
            self._finished.wait()
            return
        self._finishing = True
        try:
            with ctrl_c_waits():
                self._finish()
        finally:
            self._finished.set()

    def _finish(self) -> None:
        status = self._final_status()
        gevent.killall(self._greenlets)
        self._live.end()
        self._stamps.close()
        self._quiet.end()
        self._scraper.stop()
        fault = self._scraper.fault()
        if fault is not None:
            self._event("fault", {"what": "scraper", "text": fault})
        self._event("run_end", {"status": status})
        self.recorder.close()
        self._manifest = msgspec.structs.replace(
            self._manifest, status=status, t_end_s=self._clock.monotonic()
        )
        self._write_end()
        self._say_how_it_went()
        self._report()

    def _final_status(self) -> Status:
        """The status, once everything still open is closed."""
        if not self.walk.finished:
            self._event("interrupted")
            self.walk.abort("interrupted")
            return "interrupted"
        return "failed" if self._failed is not None else "complete"

    def _write_end(self) -> None:
        """The manifest and, where one is used, Prometheus' samples."""
        try:
            self.run_dir.write_manifest(self._manifest)
            if self._plan.prometheus is not None:
                faults = fetch_run(self.run_dir, self._manifest, self._plan.prometheus)
                for target, text in faults.items():
                    logger.warning("Prometheus, %s: %s", target, text)
        except JournalError as error:
            logger.error("%s", error)

    def _say_how_it_went(self) -> None:
        recorder = self.recorder
        if self._failed is not None:
            logger.error("the run failed: %s", self._failed)
        if self._too_many_failures():
            logger.error(
                "%d of %d requests failed, more than --max-failure-rate allows (%g)",
                recorder.failed,
                recorder.sent,
                self._plan.settings.max_failure_rate,
            )

    def show_report(self) -> None:
        """Print the figures, and where the report lies; nothing when there is none."""
        if self._summary is None:
            return
        # imported here, as in _report
        from harness.report.terminal import print_summary

        console = Console()
        print_summary(self._summary, console)
        console.print(f"report: {self.run_dir.path / 'report.html'}", markup=False, soft_wrap=True)

    def _report(self) -> None:
        """Build the report in this process; a fault in it leaves the run directory whole."""
        path = self.run_dir.path
        try:
            # imported here: it brings the plotting library, which no load needs
            from harness.report.build import build_report

            self._summary = build_report(path)
        except KvkneeError as error:
            logger.error("%s", error)
        except Exception:
            logger.exception("no report; `kvknee report %s` tries again", path)

    def _too_many_failures(self) -> bool:
        rate = self.recorder.failure_rate
        return rate is not None and rate > self._plan.settings.max_failure_rate

    def _tell(self, event: RunEvent) -> None:
        """Keep an event, and log the ones that show progress."""
        self.recorder.event(event)
        self._live.event(event)
        if event.cell is not None and event.kind in ("level_start", "level_end"):
            reason = event.detail.get("reason", "start")
            loop = self._plan.settings.workload.loop
            logger.info("level %s: %s", event.cell.label_in(loop), reason)

    def _keep(self, record: RequestRecord) -> None:
        self.recorder.record(record)
        self._live.record(record)
        self._show(record)

    def _publish(self) -> None:
        """Feeds the live metrics until killed."""
        while True:
            self._live.publish(self.walk.in_flight)
            gevent.sleep(feed.INTERVAL_S)

    def _housekeeping(self) -> None:
        """Keeps time limits, and ends the run when it cannot go on."""
        with httpx.Client(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as health:
            watch = self._watch(health)
            patience_s = self._clock.monotonic() + _USERS_TIMEOUT_S
            while not self.walk.finished:
                gevent.sleep(_TICK_S)
                self.walk.tick()
                now = self._clock.monotonic()
                if not self.walk.waits_for_users:
                    patience_s = now + _USERS_TIMEOUT_S
                elif now > patience_s:
                    self._fail("users", "the level's users did not come")
                if self.recorder.fault is not None:
                    self._fail("journal", self.recorder.fault)
                elif not self.run_dir.path.is_dir():
                    self._fail("journal", f"{self.run_dir.path} is gone")
                self._look_after_backend(watch)

    def _watch(self, health: httpx.Client) -> BackendWatch:
        urls = {info.name: info.url for info in self._plan.infos}
        return BackendWatch(self._clock, lambda name: answers(health, urls[name]))

    def _look_after_backend(self, watch: BackendWatch) -> None:
        level = self.walk.level
        if level is None:
            return
        backend = level.cell.backend
        if watch.is_lost(backend, unanswered=level.unanswered) and level is self.walk.level:
            self._lose(backend)

    def _look_after_idle(self) -> None:
        """The run also ends when a backend dies whose turn is yet to come."""
        with httpx.Client(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as health:
            watch = self._watch(health)
            while not self.walk.finished:
                gevent.sleep(_IDLE_TICK_S)
                for backend in sorted(self.walk.awaited):
                    lost = watch.is_lost(backend, unanswered=True)
                    # its turn may have come while it was asked
                    if lost and backend in self.walk.awaited:
                        self._lose(backend)

    def _lose(self, backend: str) -> None:
        """Give a backend up, and with it the run."""
        text = f"backend {backend} no longer answers"
        level = self.walk.level
        # of a level that loads another backend it says nothing
        own = level is not None and level.cell.backend == backend
        self.recorder.event(
            RunEvent(
                t_s=self._clock.monotonic(),
                kind="backend_lost",
                cell=level.cell if level is not None and own else None,
                detail={"text": text, "backend": backend},
            )
        )
        self._failed = text
        self.walk.abort("backend_lost")

    def _fail(self, what: str, text: str) -> None:
        self._event("fault", {"what": what, "text": text})
        self._failed = text
        self.walk.abort(f"{what}_lost")

    def _event(
        self,
        kind: Literal["run_start", "run_end", "fault", "interrupted"],
        detail: dict[str, Scalar] | None = None,
    ) -> None:
        self.recorder.event(RunEvent(t_s=self._clock.monotonic(), kind=kind, detail=detail or {}))

    def _first_manifest(self, t0_s: float, t0_wall_s: float) -> Manifest:
        plan = self._plan
        settings = plan.settings
        return Manifest(
            schema_version=SCHEMA_VERSION,
            run_id=self.run_dir.path.name,
            kvknee_version=__version__,
            status="running",
            t0_s=t0_s,
            t0_wall_s=t0_wall_s,
            workload=settings.workload,
            slo=settings.slo,
            max_failure_rate=settings.max_failure_rate,
            backends=plan.infos,
            fingerprint=fingerprint(settings.workload, plan.infos, machine.hardware(), __version__),
            environment=machine.environment()
            | {"prompt_nonce": plan.nonce, "client_nice": self._quiet.nice},
            scrape_interval_s=SCRAPE_INTERVAL_S,
            prometheus_url=plan.prometheus.public_url if plan.prometheus else None,
        )
