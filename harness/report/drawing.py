"""From matplotlib to inline SVG: text stays text, colours are the page's CSS variables.

A figure is drawn with marker colours that stand for variables (``--ink``, ``--s0``, ...);
they are replaced in the SVG, so one drawing serves light and dark pages. Sizes suit a
phone: a figure is drawn 4 inches wide and scales up.
"""

from __future__ import annotations

import io
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

from harness.records import Loop

#: Marker colours; each is exact in hexadecimal and used for nothing else.
INK, MUTED, GRID = "#010203", "#010204", "#010205"
LIMIT, WAIT, CARD = "#010206", "#010207", "#010208"
SERIES = tuple(f"#0102{index:02x}" for index in range(0x10, 0x18))
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    LIMIT: "--limit",
    WAIT: "--wait",
    CARD: "--card",
    **{color: f"--s{index}" for index, color in enumerate(SERIES)},
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kvknee",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.left": False,
    "ytick.minor.left": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.0,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.0,
    "savefig.transparent": True,
}
WIDTH_IN, HEIGHT_IN = 4.0, 2.7


@dataclass(frozen=True)
class Drawing:
    """One figure of the report: what one sees, the SVG, and the same for those who cannot."""

    key: str
    title: str
    caption: str
    alt: str
    svg: str


def style() -> AbstractContextManager[None]:
    """A context in which figures are created and drawn; global settings stay as they are."""
    return mpl.rc_context(_STYLE)  # type: ignore[arg-type]


def new_figure(height_in: float = HEIGHT_IN) -> Figure:
    """An empty figure of the report's width, laid out without overlap."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def level_axis(axes: Axes, levels: list[float], loop: Loop = "closed") -> None:
    """A log2 axis of concurrency or rate, the levels that were measured as its ticks."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(levels))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{level:g}" for level in levels]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = min(levels), max(levels)
    pad = 1.25 if high > low else 2.0
    axes.set_xlim(low / pad, high * pad)
    what = "concurrent requests" if loop == "closed" else "requests/s"
    axes.set_xlabel(f"{what} (log scale)")


def from_zero(axes: Axes, top: float) -> None:
    """Let the y axis go from 0 to ``top``; to 1 where everything is 0 (a mode without a cache)."""
    axes.set_ylim(0, top if top > 0 else 1)


def to_svg(figure: Figure, key: str, alt: str) -> str:
    """The figure as an inline ``<svg>`` element; ids are prefixed so that none collide."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{key}-", text)
    for marker, variable in _VARIABLES.items():
        text = text.replace(marker, f"var({variable})")
    text = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'\sxmlns(?::xlink)?="[^"]*"', "", text).replace("xlink:href", "href")
    return text.replace("<svg", f'<svg role="img" aria-label="{_attribute(alt)}"', 1)


def _attribute(text: str) -> str:
    return (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    )
