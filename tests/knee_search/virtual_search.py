"""A whole knee search against a case in virtual time, judged by the harness's own analysis."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.level_verdict import judge_level
from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures
from harness.manifest import BackendInfo, Manifest
from harness.plan.bracketing import step_of
from harness.plan.knee_search import KneeSearch
from harness.plan.search_types import Found, LevelVerdict, Searched
from harness.records import CellKey, LevelSummary
from harness.workload import Slo, Workload
from tests.knee_search.cases import Case
from tests.knee_search.virtual_load import LevelRun, VirtualLevel

RESOLUTION = 0.05
_PAUSE_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """What a search said and what it cost."""

    found: Found
    levels: int
    #: virtual seconds of all levels
    level_s: float
    #: of a sweep of the same resolution from 1 to twice the knee (or to the highest level)
    sweep_s: float


class VirtualRun:
    """The levels of a case, run when the search asks for them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.done: list[LevelSummary] = []
        self.figures: dict[CellKey, CellFigures] = {}
        self._verdicts: dict[CellKey, tuple[LevelVerdict, ...]] = {}
        self._now, self._seq = 1000.0, 0

    def verdict_of(self, cell: CellKey) -> tuple[LevelVerdict, ...]:
        return self._verdicts[cell]

    def measure(self, cell: CellKey) -> None:
        level = VirtualLevel(self.case, cell, self._now, self._seq)
        run = level.run()
        self._now += run.took_s + _PAUSE_S
        self._seq += len(run.records)
        self.figures[cell] = figures = _figures(self.case, cell, run)
        self._verdicts[cell] = judge_level(figures, slo_of(self.case))
        self.done.append(
            LevelSummary(
                cell=cell,
                n_ok=len(run.records),
                n_failed=0,
                window_s=run.window_s,
                reason="complete",
                took_s=run.took_s,
            )
        )


def search(case: Case) -> Outcome:
    """Run the search to its end."""
    run = VirtualRun(case)
    policy = KneeSearch(
        (Searched("virtual", "mode", case.start, (case.goal,)),),
        case.law.prompt_tokens,
        case.law.output_tokens,
        run.verdict_of,
        max_level=case.max_level,
        resolution=RESOLUTION,
    )
    while (cell := policy.next_cell(run.done)) is not None:
        run.measure(cell)
    found = policy.found(run.done)[0]
    took = [item.took_s or 0.0 for item in run.done]
    end = case.max_level
    if found.status == "found" and found.last_good is not None:
        end = min(end, 2 * round(found.last_good))
    return Outcome(
        found, len(took), sum(took), sum(took) / len(took) * len(sweep_levels(end, RESOLUTION))
    )


def sweep_levels(last: int, resolution: float) -> list[int]:
    """The levels of a full sweep: each one step of the resolution above the one before."""
    levels = [1]
    while levels[-1] < last:
        levels.append(levels[-1] + step_of(levels[-1], resolution))
    return levels


def slo_of(case: Case) -> Slo:
    if case.goal != "slo":
        return Slo()
    return Slo(ttft_s=case.ttft_limit_s, tpot_s=case.tpot_limit_s)


def info_of(case: Case) -> BackendInfo:
    """What the server states of itself."""
    model = case.model
    paged = model.layout == "paged"
    return BackendInfo(
        name="virtual",
        url="http://127.0.0.1:9",
        kind="vllm" if paged else "contiguous",
        mode="mode",
        model="m",
        max_model_len=model.max_model_len,
        max_num_seqs=model.max_num_seqs if case.states_seats else None,
        kv_budget_bytes=model.pool_bytes,
        block_size=model.block_size if paged else None,
        num_blocks=model.num_blocks if paged else None,
        kv_bytes_per_token=model.bytes_per_token,
    )


def _figures(case: Case, cell: CellKey, run: LevelRun) -> CellFigures:
    assert run.series is not None
    summary = analyse(_manifest(case), run.records, run.events, {cell.backend: run.series})
    return summary.cells[0]


def _manifest(case: Case) -> Manifest:
    return Manifest(
        schema_version=1,
        run_id="virtual",
        kvknee_version="0",
        status="complete",
        t0_s=0.0,
        t0_wall_s=0.0,
        workload=Workload(
            scenario="knee",
            endpoint="/v1/completions",
            prompt_tokens=case.law.prompt_tokens,
            output_tokens=case.law.output_tokens,
            levels=(),
            min_requests=(),
            min_level_s=0.0,
            max_level_s=case.max_level_s,
            request_timeout_s=1e6,
            idle_timeout_s=1e6,
        ),
        slo=slo_of(case),
        max_failure_rate=0.0,
        backends=(info_of(case),),
        fingerprint={},
        environment={},
        scrape_interval_s=case.scrape_s,
    )
