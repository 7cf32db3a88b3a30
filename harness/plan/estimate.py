"""How long the cells of a matrix may take: an estimate, never a measurement. Pure.

From two short requests a server's speed alone is known: TTFT = fixed + prompt tokens x
prefill, then one TPOT per token. n users are taken to share the prefill and nothing else,
so a round of n requests takes n x prompt x prefill + fixed + (output - 1) x TPOT. Where
cells of the backend are done, the median of measured / estimated over those of the same
level (of all levels, while there are none) corrects the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from harness.records import CellKey, LevelSummary
from harness.workload import Workload


@dataclass(frozen=True)
class Probe:
    """One request that was alone on its server."""

    prompt_tokens: int
    ttft_s: float
    #: None when its answer had one token
    tpot_s: float | None


@dataclass(frozen=True)
class Speed:
    """A server that answers one request at a time."""

    fixed_s: float
    prefill_s_per_token: float
    tpot_s: float

    @classmethod
    def of(cls, probes: Sequence[Probe]) -> Speed | None:
        """From a short and a long prompt, or one alone; None without any."""
        if not probes:
            return None
        short, long = (pick(probes, key=lambda p: p.prompt_tokens) for pick in (min, max))
        more = long.prompt_tokens - short.prompt_tokens
        per_token = max(0.0, (long.ttft_s - short.ttft_s) / more) if more else 0.0
        known = [probe.tpot_s for probe in probes if probe.tpot_s is not None]
        return cls(
            fixed_s=max(0.0, short.ttft_s - short.prompt_tokens * per_token),
            prefill_s_per_token=per_token,
            tpot_s=fmean(known) if known else 0.0,
        )

    def round_s(self, users: float, prompt_tokens: int, output_tokens: int) -> float:
        """One request of each of so many users."""
        prefill_s = users * prompt_tokens * self.prefill_s_per_token
        return self.fixed_s + prefill_s + (output_tokens - 1) * self.tpot_s


class CellTimes:
    """What each cell may take, by its backend's speed and by the cells that are done."""

    def __init__(
        self,
        speeds: Mapping[str, Speed],
        min_requests: Mapping[float, int],
        min_level_s: float,
        max_level_s: float,
        finished: Sequence[LevelSummary] = (),
    ) -> None:
        """``min_requests`` by level; ``finished``: cells of the run before it was resumed."""
        self._speeds = speeds
        self._min_requests = min_requests
        self._min_level_s = min_level_s
        self._max_level_s = max_level_s
        self._finished = tuple(finished)

    @classmethod
    def of(
        cls,
        workload: Workload,
        speeds: Mapping[str, Speed],
        finished: Sequence[LevelSummary] = (),
    ) -> CellTimes:
        """Those of a workload."""
        wanted = dict(zip(workload.levels, workload.min_requests, strict=True))
        return cls(speeds, wanted, workload.min_level_s, workload.max_level_s, finished)

    def cell_s(self, cell: CellKey, done: Sequence[LevelSummary] = ()) -> float | None:
        """Seconds from the cell's start to its end; None when nothing is known."""
        own = [
            (item.cell, item.took_s)
            for item in (*self._finished, *done)
            if item.took_s is not None and item.cell.backend == cell.backend
        ]
        model_s = self._model_s(cell)
        if model_s is None:
            return median(took_s for _, took_s in own) if own else None
        near = [item for item in own if item[0].level == cell.level] or own
        ratios = [took_s / (self._model_s(key) or took_s) for key, took_s in near]
        return model_s * (median(ratios) if ratios else 1.0)

    def _model_s(self, cell: CellKey) -> float | None:
        speed = self._speeds.get(cell.backend)
        if speed is None:
            return None
        round_s = speed.round_s(cell.level, cell.prompt_tokens, cell.output_tokens)
        rounds = math.ceil(self._min_requests.get(cell.level, 1) / cell.level)
        # a round to warm up, the window, and one to let the counted requests end
        measured_s = round_s + max(self._min_level_s, rounds * round_s)
        return min(measured_s, max(self._max_level_s, round_s)) + round_s


def about(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.4 h``: no more digits than an estimate has."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
