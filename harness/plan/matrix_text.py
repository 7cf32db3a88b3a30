"""The plan of a matrix as it is shown before the first request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from harness.kv.units import counted
from harness.plan.estimate import CellTimes, about
from harness.plan.matrix import BETWEEN_S, MatrixLevels
from harness.records import CellKey, LevelSummary
from harness.workload import Workload


def plan_lines(
    policy: MatrixLevels,
    workload: Workload,
    times: CellTimes,
    finished: Sequence[LevelSummary],
    budget_s: float | None,
) -> list[str]:
    """Cells, requests and time: one line per length and backend, then the sums."""
    wanted = dict(zip(workload.levels, workload.min_requests, strict=True))
    planned = policy.planned
    rows = [_HEADS, *_rows(policy, times, wanted)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADS))]
    lines = ["  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)) for row in rows]
    lines = [line.rstrip() for line in lines] if policy.cells else []
    requests = sum(wanted[cell.level] for cell in planned)
    sums = f"{counted(len(planned), 'cell')} to measure, {counted(requests, 'counted request')}"
    if policy.left_out:
        sums += f"; {counted(len(policy.left_out), 'cell')} left out"
    if finished:
        sums += f"; {counted(len(finished), 'cell')} finished before, not done again"
    return [*lines, "", sums, *_time_lines(planned, times, finished, budget_s)]


_HEADS = ("prompt", "output", "backend", "levels", "requests", "about", "left out")


def _rows(
    policy: MatrixLevels, times: CellTimes, wanted: dict[float, int]
) -> list[tuple[str, ...]]:
    def row_of(cell: CellKey) -> tuple[int, int, str]:
        return cell.prompt_tokens, cell.output_tokens, cell.backend

    rows: list[tuple[str, ...]] = []
    for (prompt, output, backend), group in groupby(sorted(policy.cells, key=row_of), row_of):
        cells = list(group)
        kept = [cell for cell in cells if cell not in policy.left_out]
        known = [times.cell_s(cell) for cell in kept]
        spent = [seconds for seconds in known if seconds is not None]
        rows.append(
            (
                f"{prompt}",
                f"{output}",
                backend,
                _levels(kept),
                f"{sum(wanted[cell.level] for cell in kept)}" if kept else "-",
                about(sum(spent)) if spent and len(spent) == len(known) else "-",
                "; ".join(_reasons(cells, policy)),
            )
        )
    return rows


def _levels(cells: Sequence[CellKey]) -> str:
    return ",".join(dict.fromkeys(f"{cell.level:g}" for cell in sorted(cells))) or "-"


def _reasons(cells: Sequence[CellKey], policy: MatrixLevels) -> list[str]:
    """Each reason once, with its levels where others of the row are measured."""
    found: dict[str, list[CellKey]] = {}
    for cell in cells:
        if cell in policy.left_out:
            found.setdefault(policy.left_out[cell], []).append(cell)
    whole = all(cell in policy.left_out for cell in cells)
    return [
        reason if whole and len(found) == 1 else f"{_levels(own)}: {reason}"
        for reason, own in found.items()
    ]


def _time_lines(
    planned: Sequence[CellKey],
    times: CellTimes,
    finished: Sequence[LevelSummary],
    budget_s: float | None,
) -> list[str]:
    known = [times.cell_s(cell) for cell in planned]
    spent = [seconds + BETWEEN_S for seconds in known if seconds is not None]
    if not planned:
        return []
    if not spent:
        lines = ["time: not known, no probe was answered"]
    else:
        source = "two probe requests a backend"
        if finished:
            source += " and what the finished cells took"
        lines = [
            f"time: about {about(sum(spent))}, an estimate from {source}; servers that wait or "
            "slow down under load take longer"
        ]
    if budget_s is not None:
        lines.append(
            f"--budget-minutes {budget_s / 60:g}: cells that would end later are left out as "
            "the run goes"
        )
    return lines
