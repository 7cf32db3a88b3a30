"""The level table, formatted once for the terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.analysis.failing import failing
from harness.analysis.percentiles import Distribution
from harness.analysis.summary_types import CellFigures, Level
from harness.report.units import (
    ABSENT,
    bytes_text,
    count_text,
    duration_text,
    level_text,
    ms_text,
    number,
    percent_text,
)
from harness.report.words import ADMISSIONS, CAUSES

THIN_NOTE = "* fewer samples than the percentile needs (p50: 10, p95: 100, p99: 500)"


@dataclass(frozen=True)
class Column:
    """One column: a short title, a unit, and how a cell becomes text."""

    title: str
    unit: str
    text: Callable[[CellFigures], str]
    help: str


def headline_columns(cells: Sequence[CellFigures]) -> list[Column]:
    """What every reader needs, at most eleven columns; a column of failures only if any."""
    columns = [
        level_column(cells),
        Column("n", "", lambda c: f"{c.counts.ok:,}", "counted requests that succeeded"),
    ]
    if any(cell.counts.failed for cell in cells):
        columns.append(Column("failed", "", lambda c: f"{c.counts.failed:,}", "counted failures"))
    columns += [
        percentile_column("TTFT p50", 50, lambda c: c.latency.ttft_s, "sent to first token"),
        percentile_column("TTFT p95", 95, lambda c: c.latency.ttft_s, "sent to first token"),
        percentile_column("TPOT p50", 50, lambda c: c.latency.tpot_s, "(E2E - TTFT) / (N - 1)"),
        percentile_column("TPOT p95", 95, lambda c: c.latency.tpot_s, "(E2E - TTFT) / (N - 1)"),
        Column(
            "output",
            "tok/s",
            lambda c: number(c.throughput.output_tokens_per_s),
            "tokens that arrived in the window / its length",
        ),
        Column(
            "KV used",
            "max",
            lambda c: bytes_text(_most(c, "used_bytes")),
            "most bytes of the cache that held tokens",
        ),
        Column(
            "waiting",
            "max",
            lambda c: count_text(_most(c, "waiting")),
            "most requests that the server kept waiting",
        ),
        Column("limited by", "", lambda c: limited_by(c), "what kept requests out"),
    ]
    if any(cell.steady is not None and cell.steady.unsteady for cell in cells):
        columns.append(
            Column("steady", "", lambda c: _steady(c), "whether half of the window is steady")
        )
    return columns


def _steady(figures: CellFigures) -> str:
    steady = figures.steady
    if steady is None or steady.state == "too_short":
        return ABSENT
    return "no" if steady.unsteady else "yes"


def latency_columns(cells: Sequence[CellFigures]) -> list[Column]:
    """All latencies; p99 only when some level earned it, adjusted p95 only after failures."""
    columns = [level_column(cells)]
    kinds: tuple[tuple[str, Callable[[CellFigures], Distribution]], ...] = (
        ("TTFT", lambda c: c.latency.ttft_s),
        ("TPOT", lambda c: c.latency.tpot_s),
        ("ITL", lambda c: c.latency.itl_s),
        ("E2E", lambda c: c.latency.e2e_s),
    )
    for name, get in kinds:
        columns += [percentile_column(f"{name} p{p}", p, get, "") for p in (50, 95)]
        if any(get(cell).earned(99) is not None for cell in cells):
            columns.append(_earned(f"{name} p99", 99, get))
    columns.append(
        Column(
            "tokens / event",
            "",
            lambda c: number(c.latency.tokens_per_event),
            "tokens that one stream event carries on average",
        )
    )
    if any(cell.counts.failed for cell in cells):
        columns.append(
            Column(
                "TTFT p95 adj.",
                "ms",
                lambda c: ms_text(c.latency.ttft_adjusted_s.value(95)),
                "failures count as infinite",
            )
        )
    return columns


def rate_columns(cells: Sequence[CellFigures]) -> list[Column]:
    """Rates, SLO and in-flight."""
    columns = [
        level_column(cells),
        Column("requests", "/s", lambda c: number(c.throughput.requests_per_s), ""),
        Column("prompt", "tok/s", lambda c: number(c.throughput.prompt_tokens_per_s), "prefill"),
        Column("output", "tok/s", lambda c: number(c.throughput.output_tokens_per_s), "decode"),
        Column("in flight", "mean", lambda c: number(c.throughput.mean_in_flight), ""),
    ]
    if any(cell.throughput.slo_attainment is not None for cell in cells):
        columns += [
            Column("goodput", "req/s", lambda c: number(c.throughput.goodput_rps), ""),
            Column("SLO met", "", lambda c: percent_text(c.throughput.slo_attainment), ""),
        ]
    return columns


def memory_columns(cells: Sequence[CellFigures]) -> list[Column]:
    """Memory inside the window; optional columns only where a server exposes them."""
    columns = [
        level_column(cells),
        Column("samples", "", lambda c: count_text(c.memory.samples if c.memory else None), ""),
        Column(
            "tokens held",
            "mean",
            lambda c: count_text_of(_mean(c, "client_tokens_held")),
            "prompt and received tokens of the streams in flight, counted by the client",
        ),
        Column("KV used", "mean", lambda c: bytes_text(_mean(c, "used_bytes")), ""),
        Column("KV used", "max", lambda c: bytes_text(_most(c, "used_bytes")), ""),
        Column("reserved", "max", lambda c: bytes_text(_most(c, "reserved_bytes")), ""),
        Column(
            "used / token",
            "",
            lambda c: _bytes_each(_used_per_token(c)),
            "used bytes over tokens held: rounding and padding included",
        ),
        Column("running", "max", lambda c: count_text(_most(c, "running")), ""),
        Column("waiting", "max", lambda c: count_text(_most(c, "waiting")), ""),
    ]
    optional: tuple[tuple[str, str], ...] = (
        ("device_used_bytes", "device"),
        ("process_rss_bytes", "RSS"),
        ("cuda_allocated_bytes", "CUDA alloc."),
        ("cuda_reserved_bytes", "CUDA reserved"),
    )
    for name, title in optional:
        if any(_most(cell, name) is not None for cell in cells):
            columns.append(_most_bytes(title, name))
    for name, title, text in (
        ("preemptions", "preemptions", count_text),
        ("prefix_hit_ratio", "prefix hits", percent_text),
    ):
        if any(c.memory is not None and getattr(c.memory, name) is not None for c in cells):
            columns.append(_plain(title, name, text))
    return columns


def window_columns(cells: Sequence[CellFigures]) -> list[Column]:
    """Which part of each level was measured, and what was left out."""
    opened = is_open(cells)
    columns = [level_column(cells)]
    if not opened:
        columns.append(
            Column("ramp", "", lambda c: duration_text(c.window.ramp_s), "until all are in flight")
        )
    columns += [
        Column(
            "warm-up",
            "",
            lambda c: duration_text(c.window.warmup_s),
            "requests due in it are not counted"
            if opened
            else "until every user completed one request",
        ),
        Column("window", "", lambda c: duration_text(c.window.length_s), "measured"),
        Column(
            "follow-up",
            "",
            lambda c: duration_text(c.window.follow_s),
            "until the last counted token, requests still being sent as they are due"
            if opened
            else "until the last counted token, load kept full",
        ),
        Column("drain", "", lambda c: duration_text(c.window.drain_s), ""),
    ]
    if not opened:
        columns.append(
            Column(
                "full",
                "",
                lambda c: percent_text(c.window.full_share),
                "share of the time with all users in flight",
            )
        )
    counted = "requests due in the window" if opened else "requests sent in the window"
    return [
        *columns,
        Column("counted", "", lambda c: f"{c.counts.sent:,}", counted),
        Column("recorded", "", lambda c: f"{c.counts.recorded:,}", "all requests of the level"),
    ]


def is_open(cells: Sequence[CellFigures]) -> bool:
    """Whether the cells are those of an open loop, so that a level is a rate."""
    return any(cell.open_loop is not None for cell in cells)


def level_column(cells: Sequence[CellFigures]) -> Column:
    """The level: requests in flight, or per second."""
    if is_open(cells):
        return Column("rate", "/s", level_name, "requests per second (open loop)")
    return Column("level", "", level_name, "concurrent requests (closed loop)")


def limited_by(figures: CellFigures) -> str:
    """What kept requests out at a level, or that the level gives no verdict."""
    if figures.unjudged is not None:
        return "not judged"
    if figures.admission.state in ("free", "unknown") and failing(figures) is not None:
        return CAUSES["failures"]
    return ADMISSIONS[figures.admission.state]


def count_text_of(value: float | None) -> str:
    """A mean count, rounded."""
    return count_text(None if value is None else float(round(value)))


def level_name(figures: CellFigures) -> str:
    """A level, with its repeat from the second on."""
    repeat = f" #{figures.cell.repeat + 1}" if figures.cell.repeat else ""
    return level_text(figures.cell.level) + repeat


def percentile_column(
    title: str, p: int, get: Callable[[CellFigures], Distribution], explain: str
) -> Column:
    """A percentile in milliseconds, marked where its sample is too small."""

    def text(figures: CellFigures) -> str:
        item = get(figures).at(p)
        return ms_text(item.value, thin=item.insufficient)

    return Column(title, "ms", text, explain)


def _earned(title: str, p: int, get: Callable[[CellFigures], Distribution]) -> Column:
    return Column(title, "ms", lambda c: ms_text(get(c).earned(p)), "only where n suffices")


def _gauge(figures: CellFigures, name: str) -> Level | None:
    found = getattr(figures.memory, name) if figures.memory is not None else None
    return found if isinstance(found, Level) else None


def _most(figures: CellFigures, name: str) -> float | None:
    gauge = _gauge(figures, name)
    return None if gauge is None else gauge.maximum


def _mean(figures: CellFigures, name: str) -> float | None:
    gauge = _gauge(figures, name)
    return None if gauge is None else gauge.mean


def _used_per_token(figures: CellFigures) -> float | None:
    return figures.memory.used_bytes_per_token_held if figures.memory is not None else None


def _most_bytes(title: str, name: str) -> Column:
    return Column(title, "max", lambda c: bytes_text(_most(c, name)), "")


def _plain(title: str, name: str, text: Callable[[float | None], str]) -> Column:
    def show(figures: CellFigures) -> str:
        return text(getattr(figures.memory, name)) if figures.memory is not None else ABSENT

    return Column(title, "", show, "")


def _bytes_each(value: float | None) -> str:
    """Bytes per token are small and compared to the byte, so they keep their unit."""
    return ABSENT if value is None else f"{value:,.0f} B"
