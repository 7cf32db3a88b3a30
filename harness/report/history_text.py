"""The nightly history in a terminal: plain columns, which a pipe never cuts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.errors import printable
from harness.nightly.figures import StoredFigure
from harness.nightly.history import Said, StoredRun
from harness.nightly.trend import Trend, TrendNight
from harness.records import Scalar
from harness.report.units import ABSENT, bytes_text, duration_text, number, percent_text, utc_text

#: how a metric that is neither seconds nor a share is read
_UNITS = {"output_tokens_per_s": "tokens/s", "goodput_rps": "requests/s", "memory_knee": "requests"}
#: a step that chance makes more often than this is none
_SURE = 0.01


def figure_text(metric: str, value: float | None) -> str:
    """``28.6 ms``, ``512 tokens/s``, ``2.0 %``: a figure of that metric with its unit."""
    if value is None:
        return ABSENT
    if metric in _UNITS:
        return f"{number(value)} {_UNITS[metric]}"
    if metric == "kv_bytes_per_token":
        return bytes_text(value)
    return duration_text(value) if metric.endswith("_s") else percent_text(value)


def columns(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()
) -> Iterator[str]:
    """Lines of a table as wide as it must be; columns named in ``left`` start at the left."""
    texts = [tuple(heads), *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = (
            text.ljust(width) if head in left else text.rjust(width)
            for text, width, head in zip(row, widths, heads, strict=True)
        )
        yield "  ".join(cells).rstrip()


def run_lines(runs: Sequence[StoredRun], said: Sequence[Said]) -> Iterator[str]:
    """A line for each run: how many alarms, what was said of the gated series, its mark."""
    by_run: dict[str, list[Said]] = {run.run_id: [] for run in runs}
    for item in said:
        if item.run_id in by_run:
            by_run[item.run_id].append(item)
    heads = ("night", "suite", "run", "alarms", "gated", "mark")
    rows = [
        (
            utc_text(run.at_wall_s),
            run.suite,
            run.run_id,
            _alarms(by_run[run.run_id]),
            _counts(by_run[run.run_id]),
            f"{run.mark}: {run.note}" if run.mark else "",
        )
        for run in runs
    ]
    return columns(heads, rows, left=("night", "suite", "run", "gated", "mark"))


def _alarms(said: Sequence[Said]) -> str:
    if not said or any(item.gated is None for item in said):
        return ABSENT
    return str(sum(item.alarm for item in said))


def _counts(said: Sequence[Said]) -> str:
    gated = [item.name for item in said if item.gated]
    counted = Counter(gated).most_common()
    return ", ".join(f"{count} {name}" for name, count in counted) or ABSENT


def shown_lines(
    run: StoredRun,
    setups: Mapping[str, Mapping[str, Scalar]],
    figures: Sequence[StoredFigure],
    said: Sequence[Said],
) -> Iterator[str]:
    """One run: its setups, then each cell with its figures and verdicts."""
    yield f"{run.run_id}  {utc_text(run.at_wall_s)}  suite {run.suite}  kvknee {run.kvknee_version}"
    if run.mark:
        yield f"marked {run.mark}: {printable(run.note or '')}"
    for name, facts in setups.items():
        known = (f"{key}={value}" for key, value in facts.items() if value is not None)
        yield printable(f"{name}: {', '.join(known)}")
    verdicts = {(item.cell, item.metric): item for item in said}
    cells: dict[str, dict[str, list[StoredFigure]]] = {}
    for figure in figures:
        cells.setdefault(figure.cell, {}).setdefault(figure.metric, []).append(figure)
    for cell, metrics in cells.items():
        yield ""
        yield printable(cell)
        heads = ("metric", "mean", "lowest", "highest", "repeats", "requests", "verdict")
        rows = [
            _figure_row(name, found, verdicts.get((cell, name))) for name, found in metrics.items()
        ]
        yield from (f"  {x}" for x in columns(heads, rows, left=("metric", "verdict")))


def _figure_row(metric: str, found: Sequence[StoredFigure], said: Said | None) -> tuple[str, ...]:
    values = [item.value for item in found if item.value is not None]
    requests = [item.requests for item in found if item.requests is not None]
    spread = (sum(values) / len(values), min(values), max(values)) if values else (None,) * 3
    return (
        metric,
        *(figure_text(metric, value) for value in spread),
        f"{len(values)} of {len(found)}",
        f"{min(requests)}+" if requests else ABSENT,
        _verdict(said),
    )


def _verdict(said: Said | None) -> str:
    if said is None:
        return ABSENT
    notes = ["gated"] if said.gated else []
    if said.kept_out:
        notes.append("kept out of baselines")
    return f"{said.name} ({', '.join(notes)})" if notes else said.name


def sight_lines(trends: Sequence[Trend]) -> Iterator[str]:
    """What the gate can see of each series, the sharpest first."""
    heads = ("cell", "metric", "gated", "nights", "spread", "sees", "changed")
    ordered = sorted(trends, key=_sharpness)
    rows = [
        (
            item.series.cell,
            item.series.metric.name,
            "yes" if item.series.gated else "no",
            str(item.sight.nights),
            _share(item, item.sight.night_spread),
            _share(item, item.sight.regression),
            _since(item),
        )
        for item in ordered
    ]
    return columns(heads, rows, left=("cell", "metric", "changed"))


def _sharpness(trend: Trend) -> float:
    seen = trend.sight.regression
    return float("inf") if seen is None else seen


def trend_lines(trend: Trend, newest: int) -> Iterator[str]:
    """The newest nights of one series, what the gate can see, and since when it changed."""
    metric = trend.series.metric.name
    yield printable(f"{trend.series.cell}  {metric}")
    heads = ("night", "run", "mean", "lowest", "highest", "verdict", "mark")
    rows = [_night_row(metric, night) for night in trend.nights[-newest:]]
    left = ("night", "run", "verdict", "mark")
    yield from (f"  {line}" for line in columns(heads, rows, left=left))
    yield f"  {seen_line(trend)}"
    since = _since(trend)
    yield "  no clear step" if since == ABSENT else f"  changed since {since}"


def _night_row(metric: str, night: TrendNight) -> tuple[str, ...]:
    repeats = night.reading.repeats
    values = (night.reading.value, min(repeats), max(repeats))
    return (
        utc_text(night.at_wall_s),
        night.reading.night,
        *(figure_text(metric, value) for value in values),
        night.verdict or ABSENT,
        night.mark,
    )


def seen_line(trend: Trend) -> str:
    """How large a regression must be to be found the same night, from this history."""
    sight = trend.sight
    if sight.regression is None:
        return f"{sight.nights} comparable nights: too few to say what the gate can see"
    return (
        f"smallest regression seen the same night with probability {sight.power * 100:.0f} %:"
        f" {_share(trend, sight.regression)} ({sight.nights} nights)"
    )


def _share(trend: Trend, value: float | None) -> str:
    """A share of the baseline; of a share itself, the difference in points."""
    if value is None or not math.isfinite(value):
        return ABSENT
    unit = "points" if trend.series.metric.is_share else "%"
    return f"{value * 100:.1f} {unit}"


def _since(trend: Trend) -> str:
    since = trend.since
    if since is None or since.p_value > _SURE:
        return ABSENT
    unit = "points" if trend.series.metric.is_share else "%"
    return f"{since.night}: {since.change * 100:+.1f} {unit} (p {since.p_value:.3f})"
