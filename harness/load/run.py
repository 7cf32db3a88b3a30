"""One run from its directory to its report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import gevent
import msgspec
from gevent.event import Event
from rich.console import Console

from harness import __version__
from harness.errors import JournalError, KvkneeError
from harness.live import feed
from harness.live.feed import LiveFeed
from harness.live.snapshot import run_facts
from harness.load import machine
from harness.load.caretaker import Caretaker
from harness.load.clock import Clock, ShiftedClock
from harness.load.ctrl_c import ctrl_c_waits
from harness.load.plan import RunPlan
from harness.load.quiet import QuietProcess
from harness.load.recorder import Recorder
from harness.load.self_check import watch_client
from harness.load.session import WORKER
from harness.load.stamped_socket import StampKeeper
from harness.load.walk import Course, CourseMaker
from harness.load.workers import Workers
from harness.manifest import Manifest
from harness.observe import scraper_handle
from harness.observe.prometheus import fetch_run
from harness.plan.fingerprint import fingerprint
from harness.records import SCHEMA_VERSION, RequestRecord, RunEvent, Scalar
from harness.run_again import RunHold, cut_torn_ends, earlier_outcomes
from harness.rundir import RunDir
from harness.workload import MatrixLimits

if TYPE_CHECKING:
    from harness.analysis.summary_types import RunSummary

SCRAPE_INTERVAL_S = 1.0
#: of a search, whose levels end as soon as enough samples say what they are
SEARCH_SCRAPE_INTERVAL_S = 0.5

Status = Literal["running", "complete", "interrupted", "failed"]
logger = logging.getLogger(__name__)


class Run:
    """A run in progress. ``finish`` must be called, whatever happens, and is idempotent."""

    def __init__(
        self,
        plan: RunPlan,
        make_course: CourseMaker,
        clock: Clock,
        show: Callable[[RequestRecord], None],
        live: LiveFeed,
        workers: Workers | None = None,
    ) -> None:
        """Make the run directory and start to watch; raises KvkneeError.

        ``show`` is called with every record of this process once it is kept; ``live`` is fed
        with all that happens. ``workers``, which are ready for this plan, make the requests
        in place of this process.
        """
        self._plan = plan
        self._clock = clock
        self._show = show
        self._live = live
        self._workers = workers
        self._summary: RunSummary | None = None
        self._finishing = False
        self._finished = Event()
        resume = plan.settings.resume
        t0_s, t0_wall_s = clock.monotonic(), clock.wall()
        self.run_dir = self._make_folder(t0_wall_s) if resume is None else RunDir(resume.path)
        self._hold = RunHold(self.run_dir)
        self._quiet = QuietProcess()
        if resume is None:
            self._manifest = self._first_manifest(t0_s, t0_wall_s)
        else:
            cut_torn_ends(self.run_dir)
            self._manifest = msgspec.structs.replace(
                resume.manifest, status="running", t_end_s=None, matrix=self._matrix_limits
            )
        self.run_dir.write_manifest(self._manifest)
        for backend, config in plan.configs.items():
            self.run_dir.write_model_config(backend, config)
        self.recorder = Recorder(self.run_dir)
        if resume is not None:
            finished = {item.cell for item in resume.finished}
            self.recorder.outcomes.update(earlier_outcomes(self.run_dir, finished))
        own_users = workers is None
        live.begin(run_facts(self._manifest), self.worker if own_users else None, t0_wall_s - t0_s)
        self._say_begin()
        self._stamps = StampKeeper()
        self._scraper = scraper_handle.start(
            self.run_dir.path,
            plan.targets,
            self._manifest.scrape_interval_s,
            plan.settings.api_key,
            plan.pids,
            shift_s=self._shift_s,
        )
        if workers is not None:
            workers.begin(self.run_dir.path.name, plan.settings.slo, self.recorder, live)
        self.course: Course = make_course(
            plan, self.run_dir.path.name, emit=self._tell, record=self._keep
        )
        self._caretaker = Caretaker(
            plan, clock, self.course, self.recorder, self.run_dir, self._tell, workers
        )
        self._greenlets = [*self._caretaker.start(), gevent.spawn(self._publish)]
        if own_users:
            self._greenlets.append(gevent.spawn(self._watch_client))

    @property
    def worker(self) -> str:
        """How this process is called in the records."""
        resume = self._plan.settings.resume
        return WORKER if resume is None else resume.worker

    @property
    def exit_code(self) -> int:
        """0 for a complete run with few enough failures, a report and no drift, else 1."""
        if self._manifest.status != "complete" or self._summary is None:
            return 1
        steady = self._summary.soak is None or self._summary.soak.passed
        return 0 if steady and not self._too_many_failures() else 1

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
        if self._workers is not None:
            for worker in self._workers.gather():
                self._caretaker.lost(worker)
            if self._caretaker.failed is not None and status == "complete":
                status = "failed"
        if status == "complete" and self._plan.settings.workload.soak is not None:
            # what is held with nothing in flight is part of what a soak asks
            gevent.sleep(self._plan.settings.workload.soak.rest_s)
        self._live.end()
        self._stamps.close()
        self._quiet.end()
        self._scraper.stop()
        fault = self._scraper.fault()
        if fault is not None:
            self._event("fault", {"what": "scraper", "text": fault})
        self._event("run_end", {"status": status})
        self.recorder.close()
        self._hold.close()
        self._manifest = msgspec.structs.replace(
            self._manifest, status=status, t_end_s=self._clock.monotonic()
        )
        self._write_end()
        self._say_how_it_went()
        self._report()

    def _final_status(self) -> Status:
        """The status, once everything still open is closed."""
        if not self.course.finished or self._caretaker.stopped:
            self._event("interrupted")
            self.course.abort("interrupted")
            return "interrupted"
        return "failed" if self._caretaker.failed is not None else "complete"

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
        if self._caretaker.failed is not None:
            logger.error("the run failed: %s", self._caretaker.failed)
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
            self._live.publish(self.course.in_flight)
            gevent.sleep(feed.INTERVAL_S)

    def _watch_client(self) -> None:
        """Samples this process until killed."""
        watch_client(self._clock, lambda: self.course.in_flight, self._tell)

    def _event(
        self,
        kind: Literal["run_start", "resumed", "run_end", "fault", "interrupted"],
        detail: dict[str, Scalar] | None = None,
    ) -> None:
        self.recorder.event(RunEvent(t_s=self._clock.monotonic(), kind=kind, detail=detail or {}))

    def _make_folder(self, t0_wall_s: float) -> RunDir:
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(t0_wall_s))
        settings = self._plan.settings
        return RunDir.create(settings.results_dir, f"{name}-{settings.workload.scenario}")

    @property
    def _matrix_limits(self) -> MatrixLimits | None:
        """What a resumed run must be asked again."""
        asked = self._plan.settings.matrix
        return None if asked is None else asked.limits

    @property
    def _shift_s(self) -> float:
        """What this run's clock is ahead of the machine's."""
        return self._clock.shift_s if isinstance(self._clock, ShiftedClock) else 0.0

    def _say_begin(self) -> None:
        """The first events: a new run, or the same one again and what is done anew."""
        resume = self._plan.settings.resume
        if resume is None:
            self._event("run_start")
            return
        self._event("resumed", {"worker": resume.worker, "shift_s": self._shift_s})
        for cell in resume.begun:
            now_s = self._clock.monotonic()
            self._tell(RunEvent(t_s=now_s, kind="level_redone", cell=cell))

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
            | {"prompt_nonce": plan.nonce, "client_nice": self._quiet.nice}
            | (self._workers.environment() if self._workers is not None else {}),
            scrape_interval_s=SCRAPE_INTERVAL_S
            if settings.workload.search is None
            else SEARCH_SCRAPE_INTERVAL_S,
            prometheus_url=plan.prometheus.public_url if plan.prometheus else None,
            matrix=self._matrix_limits,
        )
