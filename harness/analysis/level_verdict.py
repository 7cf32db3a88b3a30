"""One level's say about capacity and SLO, with its cause and what speaks for and against it.

capacity  share of the window's samples in which requests are kept out, for KV memory or at
          max_num_seqs (``admission`` has the rule). Bad where its 95 % interval lies above
          10 %, good where it lies below. Bad too, whatever the share: preemptions in the
          window, refusals for want of memory, more failed requests than the run allows
          (``failing``), and in an open loop a backlog that grows.
slo       share of the counted requests that meet the SLO, failures missing; bad where its
          interval lies below the attainment asked for.

Samples of a queue, and requests sent one after the other, resemble their neighbours, so the
intervals count with fewer than their number: n (1 - r) / (1 + r), r being the correlation of
neighbours, and no more than ``LOOKS_PER_ROUND`` per request's time: what happens at one time
shares one state of the engine, and samples that are all alike show no correlation
(``harness.plan.proportions``).

Attribution of a bad level
kv_memory        requests wait while the free blocks are fewer than the next prompt needs (or
                 the server counts them as kept out by its budget), or are preempted
scheduler_limit  requests wait while max_num_seqs run
compute          the SLO is missed and nothing waits for memory or a seat, or what is missed is
                 the time per output token, which a queue does not touch
failures         more requests fail than the run allows, and nothing waits for memory or a seat
client           the load generator was the limit: no verdict
"""

from __future__ import annotations

from dataclasses import replace

from harness.analysis.admission_types import AdmissionCounts
from harness.analysis.cause_facts import CauseFacts, counter_evidence
from harness.analysis.checks import underloaded
from harness.analysis.checks_client import frozen
from harness.analysis.failing import ALLOWED, Failing, failing, fails_most
from harness.analysis.looks import at_most_looks, rounds
from harness.analysis.summary_types import CellFigures
from harness.kv.units import counted
from harness.plan.proportions import count_strength, independent, strength, wilson
from harness.plan.search_types import Cause, LevelState, LevelVerdict, SearchGoal
from harness.plan.sequential import KEPT_OUT_SHARE
from harness.workload import Slo

#: A level has about ten rounds, each user's request after the other; one preemption in so many
#: requests is the least that a level can show. More than expected of that rate speaks for bad.
ROUNDS_PER_PREEMPTION = 10.0


def judge_level(
    figures: CellFigures,
    slo: Slo,
    attainment: float = 0.95,
    before: CellFigures | None = None,
    max_failure_rate: float = ALLOWED,
) -> tuple[LevelVerdict, ...]:
    """The verdicts of a level: on capacity, and on the SLO where there is one.

    ``before`` is a lower level, where one was measured: that steps grow with the batch shows
    only in comparison. ``max_failure_rate`` is the share of requests that may fail.
    """
    failed = failing(figures, max_failure_rate)
    verdicts = [_capacity(figures, failed)]
    if slo != Slo():
        verdicts.append(_slo(figures, slo, attainment, before, failed))
    return tuple(verdicts)


def _capacity(figures: CellFigures, failed: Failing | None) -> LevelVerdict:
    none = _no_verdict(figures, "capacity", KEPT_OUT_SHARE, failed)
    if none is not None:
        return none
    counts, state = figures.admission.counts, figures.admission.state
    found = figures.open_loop
    if found is not None and found.over_saturated:
        return _over_saturated(figures)
    if counts is None or state == "unknown" or not counts.samples:
        if failed is not None:
            return _failed(figures, "capacity", KEPT_OUT_SHARE, failed)
        return _unsaid(figures, "capacity", KEPT_OUT_SHARE, "unknown", figures.admission.evidence)
    share = counts.kept_out / counts.samples
    n = at_most_looks(figures, independent(counts.samples, counts.alike or 0.0))
    low, high = wilson(share, n)
    forced = failed is not None or (state == "kv_memory" and share < KEPT_OUT_SHARE)
    verdict = LevelVerdict(
        level=figures.cell.level,
        goal="capacity",
        state=_side(low > KEPT_OUT_SHARE or forced, high < KEPT_OUT_SHARE),
        share=share,
        low=low,
        high=high,
        threshold=KEPT_OUT_SHARE,
        n=counts.samples,
        cause=None,
        strength=_capacity_strength(figures, counts, share, n),
        effective=n,
    )
    if verdict.state == "good":
        return replace(verdict, evidence=(figures.admission.evidence,))
    if failed is None:
        return _blamed(verdict, figures, _kept_out_by(figures, counts))
    kept_out = state in ("kv_memory", "scheduler_limit")
    verdict = replace(verdict, strength=max(verdict.strength, failed.strength))
    verdict = _blamed(verdict, figures, _kept_out_by(figures, counts) if kept_out else "failures")
    return replace(verdict, evidence=(failed.text, *verdict.evidence))


def _slo(
    figures: CellFigures,
    slo: Slo,
    attainment: float,
    before: CellFigures | None,
    failed: Failing | None,
) -> LevelVerdict:
    none = _no_verdict(figures, "slo", attainment, failed)
    if none is not None:
        return none
    doubtful = figures.latency.doubtful_share
    if doubtful > 1.0 - attainment and (slo.ttft_s is not None or slo.tpot_s is not None):
        why = f"TTFT and TPOT of {doubtful * 100:.1f} % of the requests are not trusted"
        return _unsaid(figures, "slo", attainment, "unknown", why)
    share = figures.throughput.slo_attainment
    if share is None:
        return _unsaid(figures, "slo", attainment, "unknown", "no counted request ended")
    ended = figures.counts.ok + figures.counts.failed
    n = at_most_looks(figures, independent(ended, figures.throughput.slo_alike or 0.0))
    low, high = wilson(share, n)
    sign = 1.0 if share < attainment else -1.0
    verdict = LevelVerdict(
        level=figures.cell.level,
        goal="slo",
        state=_side(high < attainment, low > attainment),
        share=share,
        low=low,
        high=high,
        threshold=attainment,
        n=ended,
        cause=None,
        strength=sign * strength(share, n, attainment),
        effective=n,
    )
    met = f"{share * 100:.1f} % of {counted(ended, 'request')} meet the SLO"
    if verdict.state == "good":
        return replace(verdict, evidence=(met,))
    cause = _slow_by(figures, attainment)
    if failed is not None and cause in ("compute", "unknown") and fails_most(figures):
        return replace(verdict, cause="failures", evidence=(met, failed.text))
    verdict = _blamed(verdict, figures, cause, before)
    return replace(verdict, evidence=(met, *verdict.evidence))


def _side(bad: bool, good: bool) -> LevelState:
    return "bad" if bad else "good" if good else "undecided"


def _no_verdict(
    figures: CellFigures, goal: SearchGoal, threshold: float, failed: Failing | None
) -> LevelVerdict | None:
    """What is said of a level whose figures are none; None where they are some."""
    if failed is not None and failed.by_client:
        return _unsaid(figures, goal, threshold, "client", failed.text)
    if figures.unjudged is None:
        return None
    by_client = figures.client.bound or frozen(figures)
    # failures empty the level themselves: fewer in flight than asked for is what they look like
    emptied = underloaded(figures) and not by_client
    if failed is not None and (figures.window.span is None or emptied):
        return _failed(figures, goal, threshold, failed)
    if figures.window.span is None and figures.window.reason == "time_limit":
        why = "in the time of the level not every user ended a request"
        return replace(_unsaid(figures, goal, threshold, "unknown", why), too_slow=True)
    cause: Cause = "client" if by_client else "unknown"
    words = figures.client.bound_by or (figures.unjudged,)
    return _unsaid(figures, goal, threshold, cause, *words)


def _failed(
    figures: CellFigures, goal: SearchGoal, threshold: float, failed: Failing
) -> LevelVerdict:
    """Bad, and nothing but the failures says so."""
    verdict = _unsaid(figures, goal, threshold, "failures", failed.text)
    return replace(verdict, state="bad", strength=failed.strength)


def _unsaid(
    figures: CellFigures, goal: SearchGoal, threshold: float, cause: Cause, *evidence: str
) -> LevelVerdict:
    return LevelVerdict(
        level=figures.cell.level,
        goal=goal,
        state="undecided",
        share=None,
        low=None,
        high=None,
        threshold=threshold,
        n=0,
        cause=cause,
        evidence=evidence,
    )


def _over_saturated(figures: CellFigures) -> LevelVerdict:
    counts, found = figures.admission.counts, figures.open_loop
    grown = found.growth if found is not None else 0
    verdict = LevelVerdict(
        level=figures.cell.level,
        goal="capacity",
        state="bad",
        share=1.0,
        low=None,
        high=None,
        threshold=KEPT_OUT_SHARE,
        n=figures.counts.ok + figures.counts.failed,
        cause=None,
        # every quarter of the window had more outstanding than the one before
        strength=strength(1.0, 4.0, KEPT_OUT_SHARE),
        effective=4.0,
    )
    kept_out = counts is not None and counts.kept_out >= KEPT_OUT_SHARE * counts.samples
    cause = _kept_out_by(figures, counts) if counts is not None and kept_out else "compute"
    verdict = _blamed(verdict, figures, cause)
    more = f"{counted(grown, 'request')} more outstanding at the window's end than at its start"
    return replace(verdict, evidence=(more, *verdict.evidence))


def _capacity_strength(
    figures: CellFigures, counts: AdmissionCounts, share: float, n: float
) -> float:
    """By the share of the samples, or by the preemptions where those speak louder for bad."""
    own = strength(share, n, KEPT_OUT_SHARE)
    if share < KEPT_OUT_SHARE:
        own = -own
    if counts.preemptions <= 0:
        return own
    expected = (rounds(figures) or ROUNDS_PER_PREEMPTION) / ROUNDS_PER_PREEMPTION
    return max(own, count_strength(counts.preemptions, expected))


def _kept_out_by(figures: CellFigures, counts: AdmissionCounts) -> Cause:
    """What keeps requests out for longer; preemptions are a matter of memory.

    Without either it is the refusals, where the server refused any for want of memory.
    """
    if not counts.kept_out and not counts.preemptions:
        return "kv_memory" if figures.admission.state == "kv_memory" else "unknown"
    return "scheduler_limit" if counts.seated > counts.starved else "kv_memory"


def _slow_by(figures: CellFigures, attainment: float) -> Cause:
    """Why the SLO is missed: a queue delays the first token, the computation every one."""
    counts, rates = figures.admission.counts, figures.throughput
    if counts is None or not counts.samples:
        return "compute" if figures.admission.state in ("free", "compute") else "unknown"
    queued = counts.kept_out >= KEPT_OUT_SHARE * counts.samples
    tpot, ttft = rates.tpot_attainment, rates.ttft_attainment
    only_tpot = tpot is not None and tpot < attainment and (ttft is None or ttft >= attainment)
    if counts.preemptions > 0 and (only_tpot or not queued):
        return "kv_memory"
    if only_tpot or not queued:
        return "compute"
    return _kept_out_by(figures, counts)


def _blamed(
    verdict: LevelVerdict,
    figures: CellFigures,
    cause: Cause,
    before: CellFigures | None = None,
) -> LevelVerdict:
    """A verdict with its cause, what speaks for it and what against it."""
    facts = CauseFacts(figures, before)
    found = {
        "kv_memory": facts.memory(),
        "scheduler_limit": facts.seats(),
        "compute": facts.compute(),
    }
    evidence = tuple(found.get(cause, (figures.admission.evidence,)))
    against = counter_evidence(cause, figures, before) or ()
    if cause == "failures":
        against = (*facts.seats_taken(), *facts.waits_for_memory())
    return replace(verdict, cause=cause, evidence=evidence, against=against)
