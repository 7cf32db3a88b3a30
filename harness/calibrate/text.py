"""A calibration as a table and a verdict for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.calibrate.result import (
    COALESCED_LIMIT,
    ERROR_LIMIT_S,
    Calibration,
    Errors,
    LevelResult,
)

_HEADS = (
    ("", "streams"),
    ("tokens/s", "asked"),
    ("", "got"),
    ("TTFT", "p50"),
    ("error", "p99"),
    ("ms", "max"),
    ("ITL", "p50"),
    ("error", "p99"),
    ("ms", "max"),
    ("", "CPU"),
    ("within", f"{ERROR_LIMIT_S * 1000:g} ms"),
)


def render(calibration: Calibration) -> RenderableType:
    """The table, what the figures mean, and the verdict."""
    table = Table(
        box=None, padding=(0, 1), pad_edge=False, collapse_padding=True, header_style="dim"
    )
    for first, second in _HEADS:
        table.add_column(Text(f"{first}\n{second}"), justify="right", no_wrap=True)
    for level in calibration.levels:
        style = "" if level.within else "yellow"
        table.add_row(*(Text(text, style=style) for text in _row(level)))
    lines = [Text(line) for line in verdict_lines(calibration)]
    return Group(table, Text(""), *lines)


def _row(level: LevelResult) -> list[str]:
    return [
        f"{level.streams:,}",
        f"{level.asked_tokens_per_s:,.0f}",
        f"{level.tokens_per_s:,.0f}",
        *_errors(level.ttft_error),
        *_errors(level.itl_error),
        f"{level.cpu_ratio * 100:.0f} %",
        "yes" if level.within else "no",
    ]


def _errors(errors: Errors) -> list[str]:
    figures = (errors.p50_s, errors.p99_s, errors.max_s)
    return ["-" if figure is None else f"{figure * 1000:.3f}" for figure in figures]


def verdict_lines(calibration: Calibration) -> list[str]:
    """The ceiling in words, and why a level was not within the limit."""
    limit = f"{ERROR_LIMIT_S * 1000:g} ms"
    if calibration.tokens_per_s is None:
        first = f"At none of these levels did the client's p99 errors stay within {limit}."
    else:
        first = (
            f"Up to {calibration.tokens_per_s:,.0f} tokens/s in one process this client's p99 "
            f"errors stay within {limit}"
        )
        top = calibration.levels[-1].within
        first += "; more was not tried." if top else "."
    lines = [first]
    for level in calibration.levels:
        lines += [f"{level.streams:,} streams: {why}" for why in reasons(level)]
    if not calibration.complete:
        lines.append("Interrupted: the levels after these were not measured.")
    return lines


def reasons(level: LevelResult) -> Sequence[str]:
    """What else than its errors speaks against a level."""
    found = []
    if level.failed:
        found.append(f"{level.failed:,} of {level.requests:,} requests failed.")
    if level.lost or level.invented:
        found.append(f"{level.lost:,} tokens lost, {level.invented:,} invented.")
    share = level.coalesced_share or 0.0
    if share > COALESCED_LIMIT:
        found.append(f"{share * 100:.1f} % of the token events shared a read.")
    late = level.server_late.p99_s
    if late is not None and late > ERROR_LIMIT_S and not level.within:
        found.append(
            f"the simulated server itself was late by {late * 1000:.1f} ms (p99): it was at "
            "its limit, or shared a core."
        )
    return found
