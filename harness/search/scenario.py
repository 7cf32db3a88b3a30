"""Joins a knee search to Locust: policy, judge, watch and restarts, around the usual run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from harness.analysis.level_verdict import judge_level
from harness.load.clock import Clock
from harness.load.knee_settings import require_goal
from harness.load.locust_scenario import LocustScenario
from harness.load.plan import RunPlan
from harness.load.preflight import PreparedBackend
from harness.load.session import WORKER
from harness.load.settings import LoadSettings
from harness.load.walk import Walk
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.backends import backend_kind
from harness.plan.levels import FixedLevels
from harness.records import CellKey, RequestRecord, RunEvent
from harness.rundir import RunDir
from harness.search.judge import Judge
from harness.search.open_session import OpenKneeLevels, OpenKneeWalk
from harness.search.plan import KneePlan
from harness.search.restarts import StackRestarts
from harness.search.rule import level_rule
from harness.search.scrape_tail import ScrapeTail
from harness.search.session import KneeSession, SearchParts
from harness.search.watch import LevelWatch
from harness.workload import Slo


class KneeScenario(LocustScenario):
    """A scenario whose levels are chosen while it runs."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        """``name`` stands in the run's id and workload."""
        super().__init__(name, no_levels, clock=clock, kind="knee", complete=search_plan)

    def _make_walk_of(
        self,
        plan: RunPlan,
        run: str,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
    ) -> Walk:
        policy = plan.policy
        if not isinstance(policy, KneePlan):
            raise TypeError("a knee search needs its own plan")
        policy.deadline.begin(self._run_clock)
        run_dir = RunDir(plan.settings.results_dir / run)
        workload = plan.settings.workload
        given = (workload, plan.backends, self._run_clock)
        parts = search_parts(plan, policy, run_dir)
        if workload.loop == "open":
            rates = OpenKneeLevels(policy, workload)
            return OpenKneeWalk(rates, *given, parts=parts, emit=emit, record=record, worker=WORKER)
        return KneeSession(policy, *given, parts=parts, emit=emit, record=record, worker=WORKER)


def no_levels(settings: LoadSettings, backends: Sequence[BackendInfo]) -> FixedLevels:
    """What is looked for is known once it is known who has metrics: see ``search_plan``."""
    return FixedLevels(())


def search_plan(plan: RunPlan, clock: Clock) -> RunPlan:
    """The plan with the search as its policy; raises UsageError when nothing can be found."""
    with_metrics = {name for name, backend in plan.backends.items() if tells_of_its_queue(backend)}
    require_goal(
        slo=plan.settings.slo != Slo(),
        metrics={name: name in with_metrics for name in plan.backends},
    )
    return replace(plan, policy=KneePlan(plan.settings, plan.infos, with_metrics))


def tells_of_its_queue(backend: PreparedBackend) -> bool:
    """Whether its metrics say how many requests wait."""
    metrics = backend_kind(backend.info.kind).metrics
    return backend.metrics_url is not None and any(m.canonical == names.WAITING for m in metrics)


def search_parts(plan: RunPlan, policy: KneePlan, run_dir: RunDir) -> SearchParts:
    """What the walk needs beside the load."""
    tails = {
        info.name: ScrapeTail(run_dir.scrape_path(info.name), backend_kind(info.kind).sample_names)
        for info in plan.infos
        if plan.backends[info.name].metrics_url is not None
    }
    infos = {info.name: info for info in plan.infos}

    def watch(cell: CellKey) -> LevelWatch:
        tail = tails.get(cell.backend)
        if tail is not None:
            tail.skip()
        settings = plan.settings
        return LevelWatch(infos[cell.backend], cell, settings.slo, tail, settings.workload.loop)

    restarts = StackRestarts(policy.owned)
    return SearchParts(
        judge=Judge(
            run_dir.path, partial(judge_level, max_failure_rate=plan.settings.max_failure_rate)
        ),
        watch=watch,
        rule=partial(level_rule, plan.settings),
        restart=restarts,
        predicted=policy.predicted,
        start_command=restarts.command,
        left_s=policy.deadline.left_s,
    )
