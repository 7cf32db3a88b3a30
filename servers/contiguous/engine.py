"""The engine: one thread that owns the model, the cache and every running request.

Submitting, cancelling and reading gauges happen on any thread, behind one lock that is
never held during a forward. The steps themselves are in ``servers.contiguous.batch``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import torch

from servers.contiguous.admission import Admission
from servers.contiguous.batch import Batch, Runner
from servers.contiguous.batch_static import StaticBatch
from servers.contiguous.cache import Held
from servers.contiguous.errors import SHUTTING_DOWN, shutting_down
from servers.contiguous.reporting import Deliver, Reporter
from servers.contiguous.runner import PaddedRunner
from servers.contiguous.sequence import ErrorEvent, Sequence
from servers.contiguous.snapshot import EngineSnapshot
from servers.contiguous.temporaries import StepPeaks

if TYPE_CHECKING:
    # for its type alone: the engine runs without Prometheus' client, as on a bare GPU machine
    from servers.contiguous.metrics import RequestMetrics

logger = logging.getLogger(__name__)


class Steps(Protocol):
    """What decides which rows run together (``Batch``, ``StaticBatch``)."""

    #: for any thread to read
    held: Held

    def step(self) -> bool:
        """One round; False when there was nothing to do."""
        ...

    def cancel(self, sequence: Sequence) -> None:
        """Drop a request whose client has left, if it still runs."""
        ...

    def end_all(self, waiting: list[Sequence], event: ErrorEvent) -> None:
        """End all that run, and those that only waited, with one error event."""
        ...


class Engine:
    """Submit and cancel from any thread; everything else happens on the engine's own.

    Without ``start`` nothing runs by itself: ``step`` can be called by hand.
    """

    def __init__(
        self,
        runner: Runner | PaddedRunner,
        admission: Admission[Sequence],
        metrics: RequestMetrics,
        *,
        deliver: Deliver,
        clock: Callable[[], float],
        prefill_chunk: int,
        threads: int | None = None,
        peaks: StepPeaks | None = None,
        rest: Callable[[], None] | None = None,
    ) -> None:
        """``rest`` is called after each step that did something (``step_delay``)."""
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._threads = threads
        self._peaks = peaks
        self._rest = rest
        self._batch = self._make_batch(runner, Reporter(metrics, deliver, clock), prefill_chunk)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._cancelled: deque[Sequence] = deque()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- any thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """End every request with an error event, then the thread; returns at once."""
        self._stopping = True
        self._wake.set()

    def stop(self) -> None:
        """``request_stop``, and wait for the thread."""
        self.request_stop()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, sequence: Sequence) -> None:
        """Queue a request; raises QueueFullError, or RequestError when shutting down."""
        sequence.submitted_s = self._clock()
        with self._lock:
            if self._stopping:
                raise shutting_down()
            self._admission.enqueue(sequence, sequence.promise)
        self._wake.set()

    def cancel(self, sequence: Sequence) -> None:
        """Its client has left: no event follows. Does nothing for one that has ended."""
        with self._lock:
            waited = self._admission.withdraw(sequence)
        if waited:
            self._metrics.ended("cancelled")
        else:
            self._cancelled.append(sequence)
            self._wake.set()

    def snapshot(self) -> EngineSnapshot:
        """The gauges now; never waits for a forward."""
        with self._lock:
            queue = self._admission
            held = self._batch.held
            return EngineSnapshot(
                running=queue.running,
                waiting=queue.waiting,
                waiting_for_kv=queue.waiting_for_kv,
                kv_reserved_bytes=queue.reserved_bytes,
                kv_used_bytes=held.used_bytes,
                kv_tokens_held=held.tokens,
                kv_padding_bytes=held.padding_bytes,
                waiting_for_region=queue.waiting_for_region,
                free_space=queue.free_space,
                kv_part_bytes=held.parts or {"full": held.used_bytes},
                step_peak=None if self._peaks is None else self._peaks.latest(),
            )

    # ---- the engine's thread

    def _make_batch(
        self, runner: Runner | PaddedRunner, report: Reporter, prefill_chunk: int
    ) -> Steps:
        if isinstance(runner, PaddedRunner):
            return StaticBatch(
                runner,
                report,
                prefill_chunk=prefill_chunk,
                admit=self._admit,
                keep=self._keep,
                release_kept=self._release_kept,
            )
        return Batch(
            runner,
            report,
            prefill_chunk=prefill_chunk,
            admit=self._admit,
            release=self._release,
        )

    @torch.inference_mode()
    def step(self) -> bool:
        """One round; False when there was nothing to do."""
        while self._cancelled:
            self._batch.cancel(self._cancelled.popleft())
        if self._peaks is None:
            return self._batch.step()
        self._peaks.begin()
        worked = self._batch.step()
        self._peaks.end()
        return worked

    def _run(self) -> None:
        if self._threads is not None:
            # OpenMP keeps the number per thread, so it is set where the work is done
            torch.set_num_threads(self._threads)
        while not self._stopping:
            self._wake.clear()
            if not self._step_or_fail():
                self._wake.wait()
            elif self._rest is not None:
                self._rest()
        with self._lock:
            waiting = self._admission.drain()
        self._batch.end_all(waiting, ErrorEvent(SHUTTING_DOWN, 503))

    def _step_or_fail(self) -> bool:
        try:
            return self.step()
        except Exception:
            # never expected; whoever was running cannot go on, the server can
            logger.exception("a step of the engine failed")
            self._batch.end_all([], ErrorEvent("the engine failed; see the server's log"))
            return True

    def _admit(self) -> Sequence | None:
        with self._lock:
            sequence = self._admission.admit()
            if sequence is not None:
                sequence.kv_start = self._admission.start_of(sequence)
            return sequence

    def _release(self, sequences: Iterable[Sequence]) -> None:
        with self._lock:
            for sequence in sequences:
                self._admission.release(sequence)

    def _keep(self, sequences: Iterable[Sequence]) -> None:
        with self._lock:
            for sequence in sequences:
                self._admission.keep(sequence)

    def _release_kept(self) -> None:
        with self._lock:
            self._admission.release_kept()
