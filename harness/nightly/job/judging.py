"""Tonight against the nights before it: verdicts, what could be seen, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.nightly.baseline import NightKey, all_nights, tonight_series
from harness.nightly.figures import StoredFigure
from harness.nightly.gate import judge
from harness.nightly.gate_types import Reading, Series, Verdict, VerdictName
from harness.nightly.history import History
from harness.nightly.job.harvest import Place, Setups
from harness.nightly.job.plan import primary_cell
from harness.nightly.night_types import Judged
from harness.nightly.setup import differing, setup_hash
from harness.nightly.sight import ChangePoint, change_point, visible_regression
from harness.nightly.suite import Suite

_NOT_JUDGED: tuple[VerdictName, ...] = (
    "insufficient samples",
    "no comparable baseline",
    "unstable",
)
#: a step that chance explains so well is none
_MOST_CHANCE = 0.05


@dataclass(frozen=True)
class Judgement:
    """Every series judged; ``setup_changes`` as ``Night`` has them."""

    judged: tuple[Judged, ...]
    setup_changes: tuple[str, ...]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """In the order of ``judged``."""
        return tuple(item.verdict for item in self.judged)


def judge_night(
    history: History,
    suite: Suite,
    of: NightKey,
    setups: Setups,
    figures: Sequence[StoredFigure],
    places: Mapping[str, Place],
) -> Judgement:
    """Judge tonight, which is not yet in the history."""
    primary = {(primary_cell(item, suite), item.metric) for item in suite.gate.primary}
    known = {**_asked_places(suite), **places}
    series = tonight_series(history, of.suite, of.run_id, of.at_wall_s, setups, figures, primary)
    verdicts = judge(series, suite.limits)
    sources = {item.cell: item.backend for item in figures}
    trends = {name: all_nights(history, of, name, facts) for name, facts in setups.items()}
    judged = tuple(
        _judged(
            suite,
            one,
            said,
            known[one.cell],
            trends.get(sources.get(one.cell, ""), {}).get((one.cell, one.metric.name), ()),
            len(primary),
        )
        for one, said in zip(series, verdicts, strict=True)
    )
    strangers = {
        sources[item.series.cell]
        for item in judged
        if item.verdict.name == "no comparable baseline" and item.series.cell in sources
    }
    return Judgement(judged, _setup_changes(history, of, setups, strangers))


def exit_code(judged: Sequence[Judged]) -> int:
    """0 ok, 1 a gated series regressed, 2 one of them could not be judged."""
    gated = [item.verdict for item in judged if item.verdict.gated]
    if any(verdict.alarm for verdict in gated):
        return 1
    return 2 if any(verdict.name in _NOT_JUDGED for verdict in gated) else 0


def nights_needed(judged: Sequence[Judged], suite: Suite) -> int | None:
    """How many more such nights until all gated series are judged; None when none is missing.

    0: tonight was the last one, the next is judged.
    """
    missing = [
        suite.gate.min_nights - len(item.series.baseline) - 1
        for item in judged
        if item.verdict.gated and item.verdict.name == "no comparable baseline"
    ]
    return max(0, *missing) if missing else None


def _judged(
    suite: Suite,
    series: Series,
    verdict: Verdict,
    place: Place,
    earlier: tuple[Reading, ...],
    gated: int,
) -> Judged:
    return Judged(
        run=place.run,
        backend=place.backend,
        model=place.model,
        level=place.level,
        series=series,
        verdict=verdict,
        sight=visible_regression(series, suite.limits, max(gated, 1)),
        since=_since(series, verdict, earlier),
    )


def _since(series: Series, verdict: Verdict, earlier: tuple[Reading, ...]) -> ChangePoint | None:
    """The step that explains a change; None where nothing changed, or none is clear."""
    if series.tonight is None or verdict.name not in ("regressed", "improved"):
        return None
    found = change_point((*earlier, series.tonight), series.metric)
    return found if found is not None and found.p_value <= _MOST_CHANCE else None


def _asked_places(suite: Suite) -> dict[str, Place]:
    """Of the gated series, which may be missing tonight."""
    models = {run.name: run.model for run in suite.run}
    return {
        primary_cell(item, suite): Place(item.run, item.backend, models[item.run], item.level)
        for item in suite.gate.primary
    }


def _setup_changes(
    history: History, of: NightKey, setups: Setups, sources: set[str]
) -> tuple[str, ...]:
    """What differs from the newest night of another setup, of each backend that has one."""
    before = [
        run
        for run in history.runs()
        if run.suite == of.suite and (run.at_wall_s, run.run_id) < (of.at_wall_s, of.run_id)
    ]
    found = []
    for name in sorted(sources):
        tonight = setups[name]
        for run in reversed(before):
            facts = history.setups(run.run_id).get(name)
            if facts is not None and setup_hash(facts) != setup_hash(tonight):
                found.append(f"{name} since {run.run_id}: {', '.join(differing(facts, tonight))}")
                break
    return tuple(found)
