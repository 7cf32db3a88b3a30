"""The knees of one backend at one workload: each a bracket, its cause, its evidence.

A level counts when it was judged: its window opened and closed as planned, the client was
not the limit, and the load was there. The first bad level is the lowest judged one that is
bad; the last good one is the highest judged one below it. Levels are sorted by concurrency
first, so neither their order nor a good level beyond a bad one changes the answer, and a
curve that never bends gives "not reached" instead of an edge.

capacity    bad = the server keeps requests out, for KV memory or at max_num_seqs, or more fail
            than the run allows (``failing``); in an open loop also: more come due than it ends,
            all through the window
memory      bad = it does so because the KV pool is the limit (``admission`` has the rule)
latency     bad = fewer of the counted requests meet the SLO than must (95 %, or what a knee
            search was asked for), failures missing
throughput  bad = output tokens/s grew by less than 10 % per doubling of concurrency over the
            judged level before: (T2 / T1) ** (1 / log2(c2 / c1)) - 1. Only ratios enter, so
            no scaling of either axis changes it; falling throughput is bad too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.analysis.bracket import Judged, bracket
from harness.analysis.checks_open import backlog_text
from harness.analysis.confidence import gain_interval, rate_of
from harness.analysis.curve_knees import knee_confidence
from harness.analysis.failing import ALLOWED, failing, fails_most
from harness.analysis.knee_against import with_against
from harness.analysis.pool import no_prediction
from harness.analysis.slo_evidence import SLO_SHARE, interval_text, slo_evidence, slo_miss
from harness.analysis.summary_types import Admission, CellFigures
from harness.analysis.verdict_types import BackendVerdict, Knee, KneeKind
from harness.kv.capacity import Capacity, predicted_capacity
from harness.manifest import BackendInfo
from harness.observe.series import KvPool
from harness.plan.search_types import Cause
from harness.records import Loop
from harness.workload import Slo

#: Less gain than this per doubling of concurrency is a throughput knee.
GAIN_PER_DOUBLING = 0.10

_NO_RATE = "KV arithmetic tells how many requests fit at once, the levels are rates"

_KEPT_OUT: dict[Admission, Cause] = {
    "kv_memory": "kv_memory",
    "scheduler_limit": "scheduler_limit",
}


def judge_backend(
    info: BackendInfo,
    cells: Sequence[CellFigures],
    slo: Slo,
    pool: KvPool | None = None,
    loop: Loop = "closed",
    unpredictable: str | None = None,
    slo_share: float = SLO_SHARE,
    max_failure_rate: float = ALLOWED,
) -> BackendVerdict:
    """All knees of one backend; ``cells`` are those of one workload, in any order.

    ``pool`` is what the server states of its KV memory: of several groups of layers it
    leaves no prediction. In an open loop the levels are rates: nothing predicts those.
    ``unpredictable`` says why there is none for what was asked. ``slo_share`` of the requests
    must meet the SLO, and ``max_failure_rate`` of them may fail.
    """
    groups = _by_level(cells)
    first = groups[0][1][0].cell
    capacity = _admission_knee("capacity", groups, max_failure_rate)
    latency, throughput = _latency_knee(groups, slo, slo_share), _throughput_knee(groups)
    why_not = unpredictable or no_prediction(pool, info.max_model_len)
    if loop == "open":
        why_not = _NO_RATE
    predicted = None
    if why_not is None:
        predicted = predicted_capacity(info, _prompt_tokens(cells), first.output_tokens)
    verdict = BackendVerdict(
        backend=info,
        prompt_tokens=first.prompt_tokens,
        output_tokens=first.output_tokens,
        capacity=capacity,
        memory=_admission_knee("memory", groups, max_failure_rate),
        latency=latency,
        throughput=throughput,
        predicted=None,
        predicted_first_bad=None,
        prediction_holds=None,
        no_prediction=why_not,
        slo_share=slo_share,
        slo_miss=slo_miss(groups, latency.first_bad, slo_share),
        loop=loop,
        variant=first.variant,
        confidence=knee_confidence(
            groups, throughput, loop, slo_share=slo_share, gain=GAIN_PER_DOUBLING
        ),
    )
    return verdict if predicted is None else with_prediction(verdict, cells, predicted)


def with_prediction(
    verdict: BackendVerdict, cells: Sequence[CellFigures], predicted: Capacity
) -> BackendVerdict:
    """The verdict held against a prediction; ``cells`` are those that it speaks of."""
    groups = _by_level(cells)
    expected = min((level for level, _ in groups if level > predicted.requests), default=None)
    return replace(
        verdict,
        predicted=predicted,
        predicted_first_bad=expected,
        prediction_holds=_holds(groups, verdict.capacity, expected),
        no_prediction=None,
    )


def with_knees(
    verdict: BackendVerdict, cells: Sequence[CellFigures], **knees: Knee
) -> BackendVerdict:
    """The verdict with other knees, and all that follows from them; ``cells`` are its own."""
    changed = replace(verdict, **knees)  # type: ignore[arg-type]
    miss = slo_miss(_by_level(cells), changed.latency.first_bad, verdict.slo_share)
    changed = replace(changed, slo_miss=miss)
    return with_prediction(changed, cells, changed.predicted) if changed.predicted else changed


_Groups = Sequence[tuple[float, Sequence[CellFigures]]]


def _prompt_tokens(cells: Sequence[CellFigures]) -> int:
    """Mean prompt length as the server counted it, rounded up; as asked when none succeeded.

    A client does not know what a chat template or an image adds, and the cache holds it.
    """
    n = sum(cell.counts.ok for cell in cells)
    tokens = sum(cell.throughput.counted_prompt_tokens for cell in cells)
    return math.ceil(tokens / n) if n else cells[0].cell.prompt_tokens


def _by_level(cells: Sequence[CellFigures]) -> list[tuple[float, list[CellFigures]]]:
    """Cells of each level (its repeats), by rising level."""
    groups: dict[float, list[CellFigures]] = {}
    for item in sorted(cells, key=lambda c: (c.cell.level, c.cell.repeat)):
        groups.setdefault(item.cell.level, []).append(item)
    return list(groups.items())


def _holds(groups: _Groups, capacity: Knee, expected: float | None) -> bool | None:
    """Does the first level above the prediction equal the first bad one?

    None when that cannot be said: nothing was judged, or no level is bad and none above
    the prediction was judged, or a knee search could not decide that level.
    """
    if capacity.status == "no_verdict" or _undecided(capacity, expected):
        return None
    judged = {
        level
        for level, cells in groups
        for cell in cells
        if cell.unjudged is None and cell.admission.state != "unknown"
    }
    if capacity.first_bad is None and expected not in judged:
        return None
    return capacity.first_bad == expected


def _undecided(capacity: Knee, level: float | None) -> bool:
    """Whether a knee search leaves open what a level is: beyond the good ones, below the bad."""
    if capacity.searched is None or level is None:
        return False
    beyond = level > (capacity.last_good or 0.0)
    return beyond and (capacity.first_bad is None or level < capacity.first_bad)


def _judge(
    groups: _Groups,
    rule: Callable[[CellFigures], Judged],
    too: Callable[[CellFigures], bool] = lambda figures: False,
) -> list[Judged]:
    """Apply a rule to every level: one bad repeat makes a level bad.

    ``too``: levels that it can be applied to although they give no other verdict.
    """
    levels: list[Judged] = []
    for level, cells in groups:
        usable = [cell for cell in cells if cell.unjudged is None or too(cell)]
        if not usable:
            levels.append(Judged(level, None, None, cells[0].unjudged or ""))
            continue
        said = [_flagged(rule(cell), cell) for cell in usable]
        levels.append(
            next((item for item in said if item.bad), None)
            or next((item for item in said if item.bad is not None), said[0])
        )
    return levels


def _flagged(judged: Judged, figures: CellFigures) -> Judged:
    """The level's say, and that its window was not steady where that is so."""
    steady = figures.steady
    if steady is None or not steady.unsteady:
        return judged
    return replace(judged, evidence=f"{judged.evidence}; its window was not steady")


def _admission_knee(kind: KneeKind, groups: _Groups, max_failure_rate: float) -> Knee:
    def rule(figures: CellFigures) -> Judged:
        state = figures.admission.state
        level, evidence = figures.cell.level, figures.admission.evidence
        found = figures.open_loop
        if kind == "capacity" and found is not None and found.over_saturated:
            return Judged(level, True, _cause(figures), backlog_text(found))
        if state == "unknown":
            return Judged(level, None, None, evidence)
        cause = _KEPT_OUT.get(state)
        bad = cause == "kv_memory" if kind == "memory" else cause is not None
        if not bad and state == "compute":
            return Judged(level, False, "compute", f"{evidence} (a prefill queue)")
        return Judged(level, bad, cause, evidence)

    def with_failures(figures: CellFigures) -> Judged:
        said, failed = rule(figures), failing(figures, max_failure_rate)
        # failures say nothing of memory, unless the server says that they do
        if failed is None or said.bad or kind == "memory":
            return said
        if failed.by_client:
            return Judged(said.level, None, None, failed.text)
        return Judged(said.level, True, "failures", failed.text)

    knee = bracket(kind, _judge(groups, with_failures, _all_failed), "no level was measured")
    return with_against(knee, groups, _cause)


def _all_failed(figures: CellFigures) -> bool:
    """Whether a level has no window because no request succeeded: that says enough."""
    return figures.window.span is None and failing(figures) is not None


def _latency_knee(groups: _Groups, slo: Slo, wanted: float) -> Knee:
    if slo == Slo():
        return Knee("latency", "no_verdict", None, None, None, ("no SLO was asked for",))

    def rule(figures: CellFigures) -> Judged:
        attained = figures.throughput.slo_attainment
        if attained is None:
            return Judged(figures.cell.level, None, None, "no counted request ended")
        doubtful = figures.latency.doubtful_share
        if doubtful > 1.0 - wanted and (slo.ttft_s is not None or slo.tpot_s is not None):
            why = f"TTFT and TPOT of {doubtful * 100:.1f} % of the requests are not trusted"
            return Judged(figures.cell.level, None, None, why)
        bad = attained < wanted
        return Judged(
            figures.cell.level,
            bad,
            _missed_by(figures) if bad else None,
            slo_evidence(figures, slo, wanted),
        )

    knee = bracket("latency", _judge(groups, rule), "no level was measured")
    return with_against(knee, groups, _cause)


def _throughput_knee(groups: _Groups) -> Knee:
    """The rate of a level is the mean of its judged repeats."""
    levels: list[Judged] = []
    before: _Rate | None = None
    for level, cells in groups:
        found = rate_of(cells)
        if found is None:
            why = cells[0].unjudged or "no output tokens arrived in the window"
            levels.append(Judged(level, None, None, why))
            continue
        usable = next(cell for cell in cells if cell.unjudged is None)
        here = (level, found[0], found[1])
        levels.append(_flagged(_gain(here, before, usable), usable))
        before = here
    knee = bracket("throughput", levels, "no level was measured")
    return with_against(knee, groups, _cause)


#: level, output tokens/s, relative error of it
_Rate = tuple[float, float, float | None]


def _gain(here: _Rate, before: _Rate | None, figures: CellFigures) -> Judged:
    level, rate, error = here
    if before is None:
        return Judged(level, False, None, f"{rate:,.0f} output tokens/s")
    gain = gain_per_doubling(*before[:2], level, rate)
    bad = gain < GAIN_PER_DOUBLING
    text = f"{rate:,.0f} output tokens/s, {gain * 100:+.0f} % per doubling from {before[0]:g}"
    if error is not None and before[2] is not None:
        interval = gain_interval((*before[:2], before[2]), (level, rate, error))
        text += interval_text(interval, GAIN_PER_DOUBLING, "+.0f")
    return Judged(level, bad, _cause(figures) if bad else None, text)


def gain_per_doubling(level_a: float, rate_a: float, level_b: float, rate_b: float) -> float:
    """Relative gain per doubling of concurrency between two levels, a < b, rates > 0."""
    return float((rate_b / rate_a) ** (1.0 / math.log2(level_b / level_a)) - 1.0)


def _cause(figures: CellFigures) -> Cause:
    """Why a level is slow: what keeps requests out there, else the computation itself."""
    return _KEPT_OUT.get(figures.admission.state, "compute")


def _missed_by(figures: CellFigures) -> Cause:
    """Why the SLO is missed: by requests that fail, or by slow ones."""
    cause = _cause(figures)
    return "failures" if cause == "compute" and fails_most(figures) else cause
