"""KV bytes of one backend against concurrency: needed, used, reserved, and the pool."""

from __future__ import annotations

from matplotlib.ticker import MaxNLocator

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.report.curves import Curve, curves, finish, limit_line, points, spoken
from harness.report.drawing import Drawing, from_zero, new_figure, style, to_svg
from harness.report.units import byte_scale, bytes_text
from harness.report.words import load_words


def memory_figures(summary: RunSummary) -> list[Drawing]:
    """One figure of KV bytes per backend that states them."""
    drawings = [memory_figure(line) for line in curves(summary)]
    return [drawing for drawing in drawings if drawing is not None]


def memory_figure(line: Curve) -> Drawing | None:
    """KV bytes used and reserved against concurrency, under the pool."""
    used = points(line, lambda c: _largest(c, "used_bytes"))
    if not used:
        return None
    reserved = points(line, lambda c: _largest(c, "reserved_bytes"))
    needed = _needed(line)
    budget = max((c.memory.budget_bytes or 0.0) for c in line.cells if c.memory is not None)
    divisor, unit = byte_scale(max([budget, *(v for _, v in used)]))
    title = _memory_title(line, used, budget)
    with style():
        figure = new_figure()
        axes = figure.subplots()
        for found, dash, label, width, marker in (
            (reserved, (0, (4, 2)), "reserved (max)", 1.6, ""),
            (used, "solid", "used (max)", 2.0, line.marker),
            (needed, (0, (1, 1.5)), "needed (mean)", 1.6, ""),
        ):
            if found:
                axes.plot(
                    [level for level, _ in found],
                    [v / divisor for _, v in found],
                    color=line.color,
                    linestyle=dash,
                    linewidth=width,
                    marker=marker,
                    label=label,
                )
        axes.fill_between(
            [level for level, _ in used],
            [v / divisor for _, v in used],
            color=line.color,
            alpha=0.12,
            linewidth=0,
        )
        from_zero(axes, max([budget, *(v for _, v in used + reserved)]) / divisor * 1.18)
        if budget:
            limit_line(axes, budget / divisor, f"pool {bytes_text(budget)}")
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 4, 8, 10]))
        axes.set_ylabel(f"KV cache in {unit}")
        finish(axes, [line], legend_columns=3)
        alt = title + ". Used: " + spoken([(line, used)], bytes_text)
        svg = to_svg(figure, f"kv-{_safe(line.name)}", alt)
    caption = "Used: blocks or rows that hold tokens. Needed: tokens held times bytes per token."
    return Drawing(f"kv-{_safe(line.name)}", title, caption, alt, svg)


def _largest(cell: CellFigures, name: str) -> float | None:
    gauge = getattr(cell.memory, name) if cell.memory is not None else None
    return None if gauge is None else float(gauge.maximum)


def _needed(line: Curve) -> list[tuple[float, float]]:
    """Theory: tokens held by the client's count times bytes per token of the config."""
    each = line.verdict.backend.kv_bytes_per_token
    if each is None:
        return []

    def value(cell: CellFigures) -> float | None:
        held = cell.memory.client_tokens_held if cell.memory is not None else None
        return None if held is None else held.mean * each

    return points(line, value)


def _memory_title(line: Curve, used: list[tuple[float, float]], budget: float) -> str:
    level, most = max(used, key=lambda item: item[1])
    share = f", {most / budget:.0%} of the pool" if budget else ""
    return f"{line.name} uses {bytes_text(most)} at {load_words(level, line.verdict.loop)}{share}"


def _safe(name: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in name)
