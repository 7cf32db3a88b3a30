"""Says what each level was once it has ended, by the code that makes the report.

Only what was written since the level began is read, so a run directory that grows makes it
no slower. It is asked between two levels, when nothing is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures
from harness.manifest import Manifest
from harness.observe.collect import backend_series
from harness.plan.search_types import LevelVerdict
from harness.records import CellKey
from harness.rundir import RunDir
from harness.workload import Slo

#: From the figures of a level, the limits, the wanted share and a lower level's figures, where
#: there are some, to its say about each goal.
LevelRule = Callable[[CellFigures, Slo, float, CellFigures | None], tuple[LevelVerdict, ...]]


class Judge:
    """Of one run; levels are measured one after the other."""

    def __init__(self, path: Path, rule: LevelRule) -> None:
        """``path``: of the run directory, which has its manifest."""
        self._path = path
        self._rule = rule
        # samples that Prometheus keeps are fetched at the end of a run
        self._manifest: Manifest = msgspec.structs.replace(
            RunDir(path).manifest(), prometheus_url=None
        )
        self._here = RunDir(path).written()
        self._before = self._here
        self._measured: list[CellFigures] = []

    def level_begins(self) -> None:
        """What is written from here on belongs to the next level."""
        self._before, self._here = self._here, RunDir(self._path).written()

    def figures(self, cell: CellKey) -> CellFigures | None:
        """What was measured at the level that began last; None when it never started."""
        run = RunDir(self._path, self._here)
        info = self._manifest.backend(cell.backend)
        # a counter rises between two samples, of which the first may lie before the level
        series = backend_series(RunDir(self._path, self._before), info, self._manifest)
        summary = analyse(
            self._manifest,
            (record for record in run.records() if record.cell == cell),
            [event for event in run.events() if event.cell in (cell, None)],
            {info.name: series},
        )
        return next((item for item in summary.cells if item.cell == cell), None)

    def verdicts(self, cell: CellKey) -> tuple[LevelVerdict, ...]:
        """What the level says about each goal; nothing when it never started."""
        figures = self.figures(cell)
        asked = self._manifest.workload.search
        if figures is None or asked is None:
            return ()
        lower = [item for item in self._measured if _below(item.cell, cell)]
        before = max(lower, key=lambda item: item.cell.level, default=None)
        self._measured.append(figures)
        return self._rule(figures, self._manifest.slo, asked.attainment, before)


def _below(one: CellKey, other: CellKey) -> bool:
    """Whether it is a lower level of the same backend."""
    return one.backend == other.backend and not one.variant and one.level < other.level
