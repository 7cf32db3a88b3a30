"""A master's end: a run whose users lie on Locust's workers."""

from __future__ import annotations

from collections.abc import Callable

from locust.env import Environment

from harness.load.clock import Clock
from harness.load.distributed.conductor import Conductor
from harness.load.distributed.dispatch import FixedDispatcher
from harness.load.distributed.fleet import Fleet
from harness.load.distributed.veil import veiled
from harness.load.plan import RunPlan
from harness.load.walk import Course
from harness.records import RequestRecord, RunEvent


class Master:
    """The workers of one master process, and how a run uses them."""

    def __init__(self, environment: Environment, scenario: str, clock: Clock) -> None:
        """Listen to workers from now on."""
        environment.dispatcher_class = FixedDispatcher
        self._environment = environment
        self._options = environment.parsed_options
        self._clock = clock
        self.fleet = Fleet(environment, scenario, clock)

    def veil(self) -> None:
        """From now on Locust sends users without this process's options."""
        self._environment.parsed_options = veiled(self._options)

    def unveil(self) -> None:
        """Its web page may change the options again."""
        self._environment.parsed_options = self._options

    def course(
        self,
        plan: RunPlan,
        run: str,
        *,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
    ) -> Course:
        """The course of a run that the workers are ready for.

        ``record`` is never called: the records come through ``Fleet.begin``'s journals.
        """
        workload = plan.settings.workload
        return Conductor(
            plan.policy, workload, tuple(plan.backends), self._clock, self.fleet, run, emit
        )
