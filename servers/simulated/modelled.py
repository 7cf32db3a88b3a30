"""Mode *modelled*: the engine's core run in real time, one alarm per engine step.

A step ends when the model says so, counted from the end of the step before: a late alarm
delays the tokens of one step and nothing that follows.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from harness.errors import printable
from servers.simulated.alarm import Alarm
from servers.simulated.core import EngineCore, Sequence
from servers.simulated.model import EngineModel
from servers.simulated.model_metrics import ModelMetrics, metrics_for
from servers.simulated.reply import Reply
from servers.simulated.requests import BadRequestError, Job

#: as in mode paced: garbage is collected when nothing runs
_COLLECT_EVERY = 2000


@dataclass(eq=False)
class _Serving:
    """A request in the engine and its answer."""

    sequence: Sequence
    reply: Reply
    t_last_s: float | None = None


class ModelledEngine:
    """Mode *modelled*."""

    def __init__(self, loop: asyncio.AbstractEventLoop, model: EngineModel, name: str) -> None:
        """``name``: the model's name in the labels of the metrics."""
        self._loop, self._model = loop, model
        self._core = EngineCore(model)
        self._metrics: ModelMetrics = metrics_for(model, printable(name))
        self._serving: dict[int, _Serving] = {}
        self._alarm = Alarm(loop, self._step_over)
        self._step_end_s = 0.0
        self._idle = True
        self._since_collection = 0

    def check(self, job: Job) -> None:
        """Refuse what the memory could never hold; raises BadRequestError."""
        refusal = self._model.refusal(job.asked.prompt_tokens, job.max_tokens)
        if refusal is not None:
            raise BadRequestError(refusal)

    def sizes(self, job: Job, number: int) -> list[int]:
        """One token per step."""
        return [1] * job.max_tokens

    def serve(self, reply: Reply, job: Job, number: int) -> None:
        """The request waits for the next step, which begins at once in an idle engine."""
        sequence = Sequence(
            number, job.asked.prompt_tokens, job.max_tokens, reply.entry.t_received_s
        )
        self._serving[number] = _Serving(sequence, reply)
        reply.on_over = partial(self._over, number)
        self._core.add(sequence)
        self._since_collection += 1
        if self._idle:
            # what else has arrived by now is read first
            self._idle = False
            self._loop.call_soon(self._first_step)

    def metrics(self) -> str:
        """The page of the server that this layout belongs to."""
        return self._metrics.page(self._core)

    def version(self) -> Mapping[str, object]:
        """What the harness asks a server of this layout."""
        return self._metrics.version()

    def close(self) -> None:
        """No step any more."""
        self._alarm.close()

    def _first_step(self) -> None:
        self._begin_step(time.monotonic())

    def _begin_step(self, now_s: float) -> None:
        duration_s = self._core.begin_step(now_s)
        for sequence in self._core.running:
            if sequence.t_first_run_s == now_s and not sequence.computed:
                self._metrics.queued(now_s - sequence.t_arrival_s)
        if duration_s is None:
            self._idle = True
            if self._since_collection >= _COLLECT_EVERY:
                self._since_collection = 0
                gc.collect()
            return
        self._step_end_s = now_s + duration_s
        self._alarm.set(self._step_end_s)

    def _step_over(self) -> None:
        served = self._core.end_step()
        for sequence in served:
            serving = self._serving.get(sequence.key)
            if serving is not None:
                self._token(serving)
        self._metrics.stepped(served, self._core.preemptions)
        self._begin_step(self._step_end_s)

    def _token(self, serving: _Serving) -> None:
        sequence, now_s = serving.sequence, self._step_end_s
        if serving.t_last_s is None:
            self._metrics.first_token(now_s - sequence.t_arrival_s)
        else:
            self._metrics.gap(now_s - serving.t_last_s)
        serving.t_last_s = now_s
        serving.reply.entry.t_due_s.append(now_s)
        serving.reply.chunk()

    def _over(self, number: int) -> None:
        """The answer has ended, as it should or early."""
        serving = self._serving.pop(number)
        self._core.cancel(serving.sequence)
        self._metrics.ended("length" if serving.sequence.finished else "abort")
