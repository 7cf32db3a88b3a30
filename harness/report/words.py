"""Verdicts in words: one line per backend, and one sentence per knee."""

from __future__ import annotations

from harness.analysis.percentiles import insufficient
from harness.analysis.summary_types import Admission, SharedGpu
from harness.analysis.verdict_types import BackendVerdict, Knee, SloMiss
from harness.kv.units import counted
from harness.plan.search_reasons import NOTHING_AGAINST
from harness.plan.search_types import Cause, FoundStatus
from harness.records import Loop
from harness.report.units import THIN, bytes_text, level_text, percent_text
from harness.workload import Slo

BOUND: dict[Cause, str] = {
    "kv_memory": "KV-bound",
    "scheduler_limit": "bound by max_num_seqs",
    "compute": "compute-bound",
    "failures": "bound by failing requests",
    "client": "client-bound",
    "unknown": "cause unknown",
}
CAUSES: dict[Cause, str] = {
    "kv_memory": "KV memory",
    "scheduler_limit": "max_num_seqs",
    "compute": "compute",
    "failures": "failing requests",
    "client": "the client",
    "unknown": "unknown",
}
ADMISSIONS: dict[Admission, str] = {
    "free": "nothing",
    "kv_memory": "KV memory",
    "scheduler_limit": "max_num_seqs",
    "compute": "prefill queue",
    "unknown": "unknown",
}
#: How a knee search ended that did not find what it looked for.
_NOT_ENDED: dict[FoundStatus, str] = {
    "undecided": "which is not sure",
    "budget": "which was cut short",
}
#: What a level counts.
LEVEL_UNITS: dict[Loop, str] = {"closed": "requests", "open": "requests/s"}
#: What levels are levels of.
AXES: dict[Loop, str] = {"closed": "concurrency", "open": "request rate"}
SLO_NAMES = ("TTFT", "TPOT", "E2E")
KNEES = {
    "capacity": "Capacity",
    "memory": "Memory",
    "latency": "Latency",
    "throughput": "Throughput",
}
KNEE_RULES = {
    "capacity": "bad = the server keeps requests waiting, for KV memory or at max_num_seqs, or "
    "more of them fail than --max-failure-rate allows",
    "memory": "bad = requests wait because the KV pool is the limit, or are preempted",
    "latency": "bad = fewer of the counted requests meet the SLO than must (95 %, or what a knee "
    "search was asked for); failures miss",
    "throughput": "bad = less than 10 % more output tokens/s per doubling of concurrency",
}


def knee_rule(knee: Knee) -> str:
    """What makes a level bad, and who says so where that was a knee search."""
    rule = KNEE_RULES[knee.kind]
    if knee.searched is None:
        return rule
    return f"{rule}; the knee search puts a level's repeats together and decides by the interval"


def level_words(level: float | None, loop: Loop) -> str:
    """``16``, or in an open loop ``16 requests/s``."""
    text = level_text(level or 0)
    return text if loop == "closed" else f"{text} {LEVEL_UNITS[loop]}"


def load_words(level: float, loop: Loop) -> str:
    """``16 requests``, or in an open loop ``16 requests/s``."""
    return f"{level_text(level)} {LEVEL_UNITS[loop]}"


def shared_gpu_line(gpu: SharedGpu) -> str:
    """What is known of GPUs that several servers use, in one sentence."""
    used = gpu.total_used_bytes
    whose = (
        f"GPU {gpu.gpu_uuids[0]}"
        if len(gpu.gpu_uuids) == 1
        else (f"GPUs {', '.join(gpu.gpu_uuids)} together")
    )
    return (
        f"{whose}: {bytes_text(used.mean)} in use on average over the run, "
        f"{bytes_text(used.maximum)} at most ({counted(gpu.samples, 'sample')}). That is one total "
        f"for all servers there ({', '.join(gpu.backends)}); no server's part of it is known."
    )


def verdict_line(verdict: BackendVerdict, slo: Slo) -> str:
    """The headline of one backend, such as::

    paged: holds 18 at 512+64 tokens (95 % interval 17-19 by the knee search), KV-bound,
    predicted 18; meets TTFT p95 500 ms up to 11 (95 % interval 10-12 by the knee search)

    Where no search was made, the bracket takes its place: ``(knee between 16 and 32)``.
    """
    holds = f"{verdict.backend.name}: {_holds(verdict)}"
    return "; ".join(part for part in (holds, slo_clause(verdict, slo)) if part)


def _holds(verdict: BackendVerdict) -> str:
    knee, loop = verdict.capacity, verdict.loop
    tokens = f"at {verdict.prompt_tokens}+{verdict.output_tokens} tokens"
    if verdict.variant:
        tokens += f", {verdict.variant}"
    if knee.status == "no_verdict":
        return f"no verdict on what it holds {tokens} ({_reason(knee)})"
    if knee.status == "bracketed":
        text = f"holds {level_words(knee.last_good, loop)} {tokens} ({_sure(knee)})"
    elif knee.status == "below_first":
        lowest = "the lowest level judged,"
        if knee.searched not in (None, "below_first"):
            lowest = "and no lower level is sure to be held,"
        text = f"does not hold {level_words(knee.first_bad, loop)}, {lowest} {tokens}"
        text += f" ({by_search(knee)})" if knee.searched else ""
    elif knee.searched is not None:
        text = f"holds {level_words(knee.last_good, loop)} {tokens} ({_sure(knee)})"
    else:
        text = f"holds {level_words(knee.last_good, loop)}, the highest level judged, {tokens} "
        text += "(no knee reached)"
    bound = f", {BOUND[knee.cause]}" if knee.first_bad is not None and knee.cause else ""
    predicted = f", predicted {verdict.predicted.requests}" if verdict.predicted else ""
    return text + bound + predicted


def _sure(knee: Knee) -> str:
    """How sure the last good level is: its interval, else the bracket; and who says so."""
    parts = ["no knee reached"] if knee.searched == "not_reached" else []
    if knee.interval is not None:
        parts.append(interval_words(knee))
    elif knee.first_bad is not None:
        good, bad = level_text(knee.last_good or 0), level_text(knee.first_bad)
        parts.append(f"knee between {good} and {bad}")
    text = ", ".join(parts)
    return text if knee.searched is None else f"{text} {by_search(knee)}".strip()


def interval_words(knee: Knee) -> str:
    """``95 % interval 17-19``, or with an open end ``95 % interval 17 or more``; else empty."""
    low, high = knee.interval or (None, None)
    if low is None and high is None:
        return ""
    if low is None:
        return f"95 % interval {level_text(high or 0)} or fewer"
    end = " or more" if high is None else f"-{level_text(high)}"
    return f"95 % interval {level_text(low)}{end}"


def by_search(knee: Knee) -> str:
    """``by the knee search``, and that it did not come to its end where it did not."""
    ended = _NOT_ENDED.get(knee.searched) if knee.searched is not None else None
    return f"by the knee search{f', {ended}' if ended else ''}"


def _reason(knee: Knee) -> str:
    """The first evidence line without its level."""
    return knee.evidence[0].split("not judged, ")[-1] if knee.evidence else "nothing was measured"


def limit_text(limit_s: float) -> str:
    """A limit as it was asked for: ``50 ms``, ``2 s``."""
    return f"{limit_s * 1000:g} ms" if limit_s < 1 else f"{limit_s:g} s"


def slo_text(slo: Slo, only: tuple[str, ...] = SLO_NAMES, *, share: float | None = None) -> str:
    """``TTFT 500 ms and TPOT 50 ms``, of the names in ``only``; empty without an SLO.

    With a share, ``TTFT p95 500 ms and ...``: so many of the requests meet them all.
    """
    of = f" p{share * 100:g}" if share is not None else ""
    parts = [
        f"{name}{of} {limit_text(limit)}"
        for name, limit in zip(SLO_NAMES, (slo.ttft_s, slo.tpot_s, slo.e2e_s), strict=True)
        if limit is not None and name in only
    ]
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def slo_clause(verdict: BackendVerdict, slo: Slo) -> str:
    """Up to which level the SLO is met; empty when there is none or nothing was judged."""
    knee, miss = verdict.latency, verdict.slo_miss
    if knee.status == "no_verdict":
        return ""
    if knee.status == "below_first":
        # p95s may each lie within their limit: the share that meets all of them decides
        level = level_words(knee.first_bad, verdict.loop)
        level += f" ({by_search(knee)})" if knee.searched else ""
        if miss is None:
            return f"misses {slo_text(slo)} even at {level}"
        share = _share_text(verdict, miss, slo)
        return f"misses {slo_text(slo, miss.missed)} even at {level}: {share}"
    met = slo_text(slo, share=verdict.slo_share)
    text = f"meets {met} up to {level_words(knee.last_good, verdict.loop)}"
    return f"{text} ({_sure(knee)})" if knee.searched else text


def _share_text(verdict: BackendVerdict, miss: SloMiss, slo: Slo) -> str:
    """``91.7 %* of 12 requests met TTFT 500 ms and TPOT 50 ms (95 % must)``."""
    few = THIN if insufficient(miss.n, min(round(verdict.slo_share * 100), 99)) else ""
    return (
        f"{percent_text(miss.share)}{few} of {counted(miss.n, 'request')} met {slo_text(slo)} "
        f"({verdict.slo_share * 100:g} % must)"
    )


def knee_text(knee: Knee, loop: Loop = "closed") -> str:
    """Where one knee lies: ``between 16 and 32, KV memory``.

    Of a search: ``between 18 and 19, KV memory (95 % interval 17-19 by the knee search)``.
    """
    if knee.searched is None:
        return _where(knee, loop)
    sure = " ".join(filter(None, (interval_words(knee), by_search(knee))))
    return f"{_where(knee, loop)} ({sure})"


def _where(knee: Knee, loop: Loop) -> str:
    if knee.status == "no_verdict":
        return "no verdict"
    if knee.status == "not_reached":
        return f"not reached up to {level_words(knee.last_good, loop)}"
    cause = f", {CAUSES[knee.cause]}" if knee.cause else ""
    bad = level_words(knee.first_bad, loop)
    if knee.status == "below_first":
        return f"below {bad}{cause}"
    return f"between {level_text(knee.last_good or 0)} and {bad}{cause}"


def knee_evidence(knee: Knee) -> tuple[str, ...]:
    """What a knee rests on, and what speaks against its cause where that was looked for."""
    if knee.against is None or knee.cause is None:
        return knee.evidence
    name = CAUSES[knee.cause]
    against = knee.against or (NOTHING_AGAINST,)
    return (*knee.evidence, *(f"against {name}: {line}" for line in against))


def prediction_text(verdict: BackendVerdict) -> str:
    """How the predicted capacity and the measured bracket compare.

    Without a prediction: why there is none, or nothing when a fact is missing.
    """
    if verdict.predicted is None:
        return f"No prediction: {verdict.no_prediction}." if verdict.no_prediction else ""
    predicted = f"KV arithmetic predicts {verdict.predicted.requests} requests"
    expected, found = verdict.predicted_first_bad, verdict.capacity.first_bad
    if verdict.prediction_holds is None and expected is None and found is None:
        return f"{predicted}; no higher level was tried, so nothing tests that."
    if verdict.prediction_holds is None:
        return f"{predicted}; the levels judged cannot confirm it."
    if verdict.prediction_holds:
        return (
            f"{predicted}, so {level_text(expected or 0)} should be the first bad level, and it is."
        )
    should = (
        f"{level_text(expected)} should be the first bad level"
        if expected is not None
        else "no level tried should be bad"
    )
    is_bad = f"{level_text(found)} was" if found is not None else "none was"
    return f"{predicted}, so {should}, but {is_bad}."
