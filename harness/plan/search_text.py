"""What a knee search says while it goes on, and at its end."""

from __future__ import annotations

from collections.abc import Sequence

from harness.plan.search_types import Cause, Found, LevelVerdict
from harness.records import CellKey, Loop

CAUSE_WORDS: dict[Cause, str] = {
    "kv_memory": "KV memory",
    "scheduler_limit": "max_num_seqs",
    "compute": "compute",
    "failures": "failing requests",
    "client": "the client",
    "unknown": "cause unknown",
}


def level_line(cell: CellKey, verdicts: Sequence[LevelVerdict], loop: Loop) -> str:
    """``paged 512+64 c18: good, requests kept out in 0 % (0-8 %) of 44 samples``."""
    if not verdicts:
        return f"{cell.label_in(loop)}: not judged"
    return f"{cell.label_in(loop)}: " + "; ".join(_verdict_words(item) for item in verdicts)


def _verdict_words(verdict: LevelVerdict) -> str:
    words: str = verdict.state
    if verdict.over_saturated:
        words += ", more requests come in than end"
    elif verdict.share is not None:
        share = _share(verdict.share, verdict.low, verdict.high)
        if verdict.goal == "capacity":
            words += f", requests kept out in {share} of {verdict.n} samples"
        else:
            words += f", {share} of {verdict.n} requests meet the SLO"
    if verdict.cause is not None:
        words += f" ({CAUSE_WORDS[verdict.cause]})"
    return words


def _share(share: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{share * 100:.0f} %"
    return f"{share * 100:.0f} % ({low * 100:.0f}-{high * 100:.0f} %)"


def next_line(
    cell: CellKey, verdicts: Sequence[LevelVerdict], predicted: int | None, loop: Loop
) -> str:
    """``next paged 512+64 c19: predicted 18; capacity good up to 18, bad from 20``."""
    known = [f"predicted {predicted}"] if predicted is not None else []
    for goal in dict.fromkeys(item.goal for item in verdicts):
        own = [item for item in verdicts if item.goal == goal]
        good = [item.level for item in own if item.state == "good"]
        bad = [item.level for item in own if item.state == "bad"]
        name = "capacity" if goal == "capacity" else "SLO"
        parts = [f"good up to {max(good):g}"] if good else []
        parts += [f"bad from {min(bad):g}"] if bad else []
        known += [f"{name} {', '.join(parts)}"] if parts else []
    return f"next {cell.label_in(loop)}" + (f": {'; '.join(known)}" if known else "")


def found_line(found: Found, loop: Loop) -> str:
    """``paged holds 18 (95 % interval 17-19), limited by KV memory``."""
    unit = "requests at once" if loop == "closed" else "requests/s"
    doing = "holds" if found.goal == "capacity" else "meets the SLO up to"
    if found.last_good is None:
        return f"{found.backend} {doing} {_nothing(found, unit)}"
    text = f"{found.backend} {doing} {found.last_good:g} {unit}{_interval(found)}"
    if found.status == "not_reached":
        return f"{text}; no level up to there is bad"
    if found.status == "budget":
        text += f"; the search was cut short{_bad(found)}"
    elif found.status == "undecided":
        text += f"; not sure{_bad(found)}"
    if found.cause is not None:
        text += f", limited by {CAUSE_WORDS[found.cause]}"
    return text


def _nothing(found: Found, unit: str) -> str:
    if found.status == "below_first" and found.first_bad is not None:
        shown = unit.replace("requests", "request") if found.first_bad == 1 else unit
        return f"not even {found.first_bad:g} {shown}"
    why = "the search was cut short" if found.status == "budget" else "no level is sure to be good"
    return f"an unknown number of {unit}: {why}{_bad(found)}"


def _interval(found: Found) -> str:
    low, high = found.low, found.high
    if low is None and high is None:
        return ""
    if low is None:
        return f" (95 % interval {high:g} or fewer)"
    return (
        f" (95 % interval {low:g}-{high:g})"
        if high is not None
        else (f" (95 % interval {low:g} or more)")
    )


def _bad(found: Found) -> str:
    return f" ({found.first_bad:g} is bad)" if found.first_bad is not None else ""
