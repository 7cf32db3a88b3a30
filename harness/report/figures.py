"""The speed of all backends against concurrency: throughput, TTFT and TPOT."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from harness.analysis.percentiles import Distribution
from harness.analysis.summary_types import CellFigures, RunSummary
from harness.report.curves import (
    Curve,
    curves,
    finish,
    hollow,
    knee_caption,
    limit_line,
    points,
    spoken,
)
from harness.report.drawing import Drawing, new_figure, style, to_svg
from harness.report.units import number
from harness.report.words import AXES, level_words, load_words


def speed_figures(summary: RunSummary) -> list[Drawing]:
    """Throughput, TTFT and TPOT of all backends; a figure without data is left out."""
    lines = curves(summary)
    slo = summary.manifest.slo
    drawings = [
        throughput_figure(lines),
        latency_figure(lines, "ttft", "TTFT", lambda c: c.latency.ttft_s, slo.ttft_s, True),
        latency_figure(lines, "tpot", "TPOT", lambda c: c.latency.tpot_s, slo.tpot_s, False),
    ]
    return [drawing for drawing in drawings if drawing is not None]


def throughput_figure(lines: Sequence[Curve]) -> Drawing | None:
    """Output tokens per second against concurrency, the knee shaded, the prediction marked."""
    drawn = [(line, points(line, lambda c: c.throughput.output_tokens_per_s)) for line in lines]
    drawn = [(line, found) for line, found in drawn if found]
    if not drawn:
        return None
    title, fitted = _throughput_title(drawn), False
    with style():
        figure = new_figure()
        axes = figure.subplots()
        for line, found in drawn:
            axes.plot(
                *zip(*found, strict=True), color=line.color, marker=line.marker, label=line.name
            )
            hollow(axes, line, found)
            fitted |= _draw_law(axes, line)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("output tokens / s")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        finish(axes, lines)
        alt = title + ". " + spoken(drawn, lambda v: f"{v:,.0f} tokens/s")
        svg = to_svg(figure, "throughput", alt)
    law = "Thin: the fitted scalability law. " if fitted else ""
    return Drawing("throughput", title, f"{law}{knee_caption(lines)}".strip(), alt, svg)


def _draw_law(axes: Axes, line: Curve) -> bool:
    """The scalability law as fitted to a backend's levels; False where it was not."""
    law = next((c for c in line.verdict.confidence.curves if c.kind == "usl" and c.curve), None)
    if law is None:
        return False
    axes.plot(*zip(*law.curve, strict=True), color=line.color, linewidth=0.9, alpha=0.7, zorder=1)
    return True


def latency_figure(
    lines: Sequence[Curve],
    key: str,
    name: str,
    get: Callable[[CellFigures], Distribution],
    limit_s: float | None,
    log: bool,
) -> Drawing | None:
    """p50 of a latency as a line in a band from p5 to p95, against concurrency."""
    drawn = [(line, points(line, lambda c: get(c).value(50))) for line in lines]
    drawn = [(line, found) for line, found in drawn if found]
    if not drawn:
        return None
    title = _latency_title(name, lines, get, limit_s)
    with style():
        figure = new_figure()
        axes = figure.subplots()
        for line, found in drawn:
            levels = [level for level, _ in found]
            low, high = (
                [v * 1000 for _, v in points(line, lambda c, p=p: get(c).value(p))]  # type: ignore[misc]
                for p in (5, 95)
            )
            axes.fill_between(levels, low, high, color=line.color, alpha=0.18, linewidth=0)
            axes.plot(levels, high, color=line.color, linewidth=0.9, alpha=0.7)
            axes.plot(
                levels,
                [v * 1000 for _, v in found],
                color=line.color,
                marker=line.marker,
                label=line.name,
            )
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: number(v)))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(bottom=0)
        for line, found in drawn:
            hollow(axes, line, [(level, v * 1000) for level, v in found])
        limit_note = _slo_line(axes, name, limit_s)
        axes.set_ylabel(f"{name} in ms" + (" (log scale)" if log else ""))
        finish(axes, lines)
        alt = title + ". p50: " + spoken(drawn, lambda v: f"{number(v * 1000)} ms")
        svg = to_svg(figure, key, alt)
    return Drawing(
        key,
        title,
        f"Line: p50 of {name}; band: p5 to p95 of the counted requests. {limit_note}"
        f"{knee_caption(lines)}",
        alt,
        svg,
    )


def _slo_line(axes: Axes, name: str, limit_s: float | None) -> str:
    """Draw the limit where it is near the data; else say in words where it lies."""
    if limit_s is None:
        return ""
    bottom, top = axes.get_ylim()
    limit = limit_s * 1000
    if limit > top * 1.5 or limit < bottom / 1.5:
        where = "above" if limit > top else "below"
        return f"The SLO of {limit:g} ms lies {where} the axis. "
    axes.set_ylim(min(bottom, limit / 1.2), max(top, limit * 1.2))
    limit_line(axes, limit, f"SLO {limit:g} ms")
    return ""


def _throughput_title(points: Sequence[tuple[Curve, list[tuple[float, float]]]]) -> str:
    best = [(line.name, *max(found, key=lambda item: item[1])) for line, found in points]
    if len(best) == 1:
        name, level, rate = best[0]
        load = load_words(level, points[0][0].verdict.loop)
        return f"{name} peaks at {rate:,.0f} output tokens/s, at {load}"
    ranked = sorted(best, key=lambda item: -item[2])
    (first, _, top), (last, _, low) = ranked[0], ranked[-1]
    if low > 0 and top / low >= 1.1:
        return f"{first} peaks at {number(top / low)} times the tokens/s of {last}"
    return f"{first} and {last} peak at about the same tokens/s"


def _latency_title(
    name: str,
    lines: Sequence[Curve],
    get: Callable[[CellFigures], Distribution],
    limit_s: float | None,
) -> str:
    if limit_s is None:
        return f"{name} against {AXES[lines[0].verdict.loop]}"
    parts: list[str] = []
    for line in lines:
        p95 = points(line, lambda c: get(c).value(95))
        within = [level for level, value in p95 if value <= limit_s]
        beyond = [level for level, value in p95 if value > limit_s]
        last = max((lv for lv in within if not beyond or lv < min(beyond)), default=None)
        if not beyond and last is not None:
            parts.append(f"{line.name} at every level")
        elif last is None:
            parts.append(f"{line.name} at none")
        else:
            parts.append(f"{line.name} up to {level_words(last, line.verdict.loop)}")
    return f"{name} p95 within {limit_s * 1000:g} ms: {', '.join(parts)}"
