"""Looks after a run: keeps its time limits, and ends it when it cannot go on."""

from __future__ import annotations

import logging
from collections.abc import Callable

import gevent
import httpx

from harness.load.backend_watch import BackendWatch
from harness.load.clock import Clock
from harness.load.plan import RunPlan
from harness.load.recorder import Recorder
from harness.load.server_facts import is_alive
from harness.load.walk import Course
from harness.load.workers import OneWorker, Workers
from harness.records import EventKind, RunEvent, Scalar
from harness.rundir import RunDir

_TICK_S = 0.25
#: Seldom enough to be no load on a server, or on one that shares its machine.
_IDLE_TICK_S = 2.0
_HEALTH_TIMEOUT_S = 2.0
#: A level that has not had its users for this long never will.
_USERS_TIMEOUT_S = 60.0

logger = logging.getLogger(__name__)


class Caretaker:
    """Watches over one run from greenlets of its own, until they are killed."""

    def __init__(
        self,
        plan: RunPlan,
        clock: Clock,
        course: Course,
        recorder: Recorder,
        run_dir: RunDir,
        tell: Callable[[RunEvent], None],
        workers: Workers | None,
    ) -> None:
        """``tell`` keeps an event; ``workers`` make the requests when this process does not."""
        self._plan = plan
        self._clock = clock
        self._course = course
        self._recorder = recorder
        self._run_dir = run_dir
        self._tell = tell
        self._workers = workers
        #: why the run was ended early; None when it was not
        self.failed: str | None = None
        #: it was ended by somebody who stopped a worker
        self.stopped = False

    def start(self) -> list[gevent.Greenlet[..., None]]:
        """Begin; kill what is returned to end."""
        return [gevent.spawn(self._housekeeping), gevent.spawn(self._look_after_idle)]

    def lost(self, worker: OneWorker) -> None:
        """A worker died: whatever it did not ship is gone, and the load is not what was asked."""
        loss = worker.loss()
        self._event("worker_lost", loss)
        text = f"worker {worker.where} was lost, with its records since its last shipment"
        self.failed = self.failed or text
        logger.error("%s", text)

    def _housekeeping(self) -> None:
        with httpx.Client(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as health:
            watch = self._watch(health)
            patience_s = self._clock.monotonic() + _USERS_TIMEOUT_S
            while not self._course.finished:
                gevent.sleep(_TICK_S)
                self._course.tick()
                now = self._clock.monotonic()
                if not self._course.waits_for_users:
                    patience_s = now + _USERS_TIMEOUT_S
                elif now > patience_s:
                    self._fail("users", "the level's users did not come")
                self._look_after_journal()
                if self._workers is not None:
                    self._look_after_workers(self._workers)
                self._look_after_backend(watch)

    def _look_after_journal(self) -> None:
        if self._recorder.fault is not None:
            self._fail("journal", self._recorder.fault)
        elif not self._run_dir.path.is_dir():
            self._fail("journal", f"{self._run_dir.path} is gone")

    def _look_after_workers(self, workers: Workers) -> None:
        for worker in workers.lost():
            self.lost(worker)
            self._course.abort("worker_lost")
        if workers.fault is not None:
            self._fail("worker", workers.fault)
        for worker in workers.left():
            if not self.stopped:
                logger.error("worker %s was stopped; the run ends", worker.where)
            self.stopped = True
        if self.stopped:
            self._course.abort("interrupted")

    def _watch(self, health: httpx.Client) -> BackendWatch:
        urls = {info.name: info.url for info in self._plan.infos}
        return BackendWatch(self._clock, lambda name: is_alive(health, urls[name]))

    def _look_after_backend(self, watch: BackendWatch) -> None:
        level = self._course.level
        if level is None:
            return
        backend = level.cell.backend
        if watch.is_lost(backend, unanswered=level.unanswered) and level is self._course.level:
            self._lose(backend)

    def _look_after_idle(self) -> None:
        """The run also ends when a backend dies whose turn is yet to come."""
        with httpx.Client(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as health:
            watch = self._watch(health)
            while not self._course.finished:
                gevent.sleep(_IDLE_TICK_S)
                for backend in sorted(self._course.awaited):
                    lost = watch.is_lost(backend, unanswered=True)
                    # its turn may have come while it was asked
                    if lost and backend in self._course.awaited:
                        self._lose(backend)

    def _lose(self, backend: str) -> None:
        """Give a backend up, and with it the run."""
        text = f"backend {backend} no longer answers"
        level = self._course.level
        # of a level that loads another backend it says nothing
        own = level is not None and level.cell.backend == backend
        self._tell(
            RunEvent(
                t_s=self._clock.monotonic(),
                kind="backend_lost",
                cell=level.cell if level is not None and own else None,
                detail={"text": text, "backend": backend},
            )
        )
        self.failed = text
        if self._plan.settings.goes_on:
            logger.error("%s; the run goes on with the others", text)
            self._course.give_up(backend, "backend_lost")
        else:
            self._course.abort("backend_lost")

    def _fail(self, what: str, text: str) -> None:
        if self._course.finished:
            return
        self._event("fault", {"what": what, "text": text})
        self.failed = text
        self._course.abort(f"{what}_lost")

    def _event(self, kind: EventKind, detail: dict[str, Scalar]) -> None:
        self._tell(RunEvent(t_s=self._clock.monotonic(), kind=kind, detail=detail))
