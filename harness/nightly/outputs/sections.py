"""A night in sections, the same for every output that people read. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.kv.units import counted
from harness.nightly.night_types import Judged, Night
from harness.nightly.outputs.words import (
    MOVED,
    UNJUDGED,
    bare_text,
    cell_text,
    change_text,
    interval_text,
    metric_text,
    moved_text,
    sight_text,
    threshold_text,
    unit_text,
    verdict_text,
)
from harness.report.units import count_text, duration_text, percent_text, utc_text

#: Heads of ``row``.
HEADS = (
    *("cell", "figure", "verdict", "tonight", "baseline", "change", "95 % interval"),
    *("called from", "nights"),
)
SIGHT_HEADS = ("cell", "figure", "smallest regression", "night to night", "nights")


def gated(night: Night) -> tuple[Judged, ...]:
    """The series that can fail the night."""
    return tuple(item for item in night.judged if item.verdict.gated)


def ungated(night: Night) -> tuple[Judged, ...]:
    """All others."""
    return tuple(item for item in night.judged if not item.verdict.gated)


def moved(night: Night) -> tuple[Judged, ...]:
    """Every series that is not gated and became worse or better, the worse first."""
    items = [item for item in ungated(night) if item.verdict.name in MOVED]
    return tuple(sorted(items, key=lambda item: item.verdict.name != "regressed"))


def alarms(night: Night) -> tuple[Judged, ...]:
    """What fails the night, the furthest beyond its threshold first."""
    return tuple(sorted(night.alarms, key=_beyond, reverse=True))


def _beyond(item: Judged) -> float:
    worse, threshold = item.verdict.worse, item.verdict.threshold
    return worse / threshold if worse is not None and threshold else 0.0


def notes(night: Night) -> tuple[str, ...]:
    """What belongs to the verdict: the other alarms, new setups, improvements to look at."""
    # the first one is the headline where nothing worse happened
    found = alarms(night)[1:] if night.exit_code == 1 else alarms(night)
    lines = [f"regressed: {moved_text(item)}" for item in found]
    lines += [f"another setup: {text}" for text in night.setup_changes]
    lines += [
        f"{moved_text(item)}: too good to be believed as it stands; look why, then "
        f"kvknee history baseline {night.night_id} --reason WHY"
        for item in night.judged
        if item.verdict.ask_new_baseline
    ]
    return tuple(lines)


def row(item: Judged) -> tuple[str, ...]:
    """One series under ``HEADS``."""
    verdict, metric = item.verdict, item.series.metric
    return (
        cell_text(item),
        f"{metric_text(metric)} {unit_text(metric)}",
        verdict_text(verdict),
        bare_text(metric, verdict.tonight),
        bare_text(metric, verdict.baseline),
        change_text(metric, verdict.change),
        interval_text(verdict),
        threshold_text(verdict),
        count_text(verdict.nights),
    )


def reasons(items: Sequence[Judged]) -> tuple[str, ...]:
    """Why a series regressed or has no verdict, one line each."""
    return tuple(
        f"{cell_text(item)}, {metric_text(item.series.metric)}: "
        f"{item.verdict.name}: {item.verdict.reason}"
        for item in items
        if item.verdict.name in ("regressed", *UNJUDGED) and item.verdict.reason
    )


def rest_text(night: Night) -> str:
    """``71 others: 60 ok, 11 no comparable baseline``; empty without any."""
    names = [item.verdict.name for item in ungated(night)]
    rest = [name for name in names if name not in MOVED]
    counts = ", ".join(f"{rest.count(name)} {name}" for name in dict.fromkeys(rest))
    return f"{counted(len(rest), 'other')}, not gated: {counts}" if rest else ""


def event_lines(night: Night) -> tuple[str, ...]:
    """When, what, and the words; then the runs that did not end well."""
    lines = [f"{utc_text(e.at_wall_s)}  {e.kind}: {e.text}" for e in night.events]
    lines += [
        f"{run.name}, repeat {run.repeat + 1}: exit code {run.exit_code} after "
        f"{duration_text(run.seconds)}"
        for run in night.runs
        if run.exit_code != 0
    ]
    return tuple(lines)


def sight_rows(night: Night) -> tuple[tuple[str, ...], ...]:
    """The gated series under ``SIGHT_HEADS``."""
    return tuple(
        (
            cell_text(item),
            metric_text(item.series.metric),
            sight_text(item),
            percent_text(item.sight.night_spread),
            count_text(item.sight.nights),
        )
        for item in gated(night)
    )


def sight_note(night: Night) -> str:
    """What the smallest regression means."""
    items = gated(night)
    power = items[0].sight.power if items else 0.75
    return (
        f"Found the same night with probability {power * 100:g} %, by the baseline's own spread "
        f"from night to night; - where fewer than {night.limits.min_nights} comparable nights are "
        "stored. Smaller ones are found when they last."
    )


def about_line(night: Night) -> str:
    """Which night this is."""
    runs = counted(len(night.runs), "run")
    return (
        f"{night.night_id}, suite {night.suite}, {utc_text(night.at_wall_s)}, "
        f"{runs} in {duration_text(night.seconds)}, {night.machine}, "
        f"kvknee {night.kvknee_version}"
    )


def method_lines(night: Night) -> tuple[str, ...]:
    """How it was judged."""
    limits = night.limits
    return (
        f"The baseline is the last {limits.baseline_nights} good nights of the same setup. A "
        "regression is beyond both floors of its metric, beyond what those nights do, and the "
        "95 % interval (bootstrap over tonight's repeats) leaves zero out.",
        f"Without any change at most {limits.false_alarm_rate * 100:g} % of nights fail by chance, "
        "over all gated figures together. Figures that are not gated never fail a night: of many, "
        "some move by chance.",
        "'called from' is the smallest change that would have been called a regression tonight.",
    )
