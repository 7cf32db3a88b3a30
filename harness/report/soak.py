"""What a soak found, in words and as a table."""

from __future__ import annotations

from harness.analysis.soak_types import BackendSoak, Drift, DriftState, SoakFigures
from harness.kv.units import counted
from harness.report.units import ABSENT, bytes_text, ms_text, number

#: heads: (title, unit)
SOAK_HEADS: tuple[tuple[str, str], ...] = (
    ("backend", ""),
    ("figure", ""),
    ("median", ""),
    ("slope", "per hour"),
    ("from", "per hour"),
    ("to", "per hour"),
    ("no drift up to", "per hour"),
    ("verdict", ""),
)
SOAK_METHOD = (
    "Slopes: Theil and Sen's, the median over all pairs of stretches; interval: 95 %, from a "
    "bootstrap of its residuals (999 resamples, fixed seed), widened by how much neighbouring "
    "stretches resemble each other. One point per stretch of load: medians of TTFT and TPOT, "
    "and of memory in the pause behind it. The first tenth of the stretches is warm-up."
)
_VERDICTS: dict[DriftState, str] = {
    "steady": "no drift",
    "drifts": "drifts",
    "unclear": "unclear: a longer run narrows the interval",
    "not_measured": "not measured",
    "not_judged": "not judged",
}


def soak_line(soak: BackendSoak) -> str:
    """The verdict on one backend, in one sentence."""
    by_state: dict[DriftState, list[Drift]] = {}
    for drift in soak.drifts:
        by_state.setdefault(drift.state, []).append(drift)
    parts = []
    for drift in by_state.get("drifts", ()):
        parts.append(f"{drift.name} drifts by {_growth(drift)} per hour")
    if "unclear" in by_state:
        parts.append(f"unclear for {_names(by_state['unclear'])}")
    if "steady" in by_state:
        limits = ", ".join(f"{d.name} {_limit(d)}" for d in by_state["steady"])
        parts.append(f"no drift beyond the limits per hour ({limits})")
    if "not_measured" in by_state:
        parts.append(f"not measured: {_names(by_state['not_measured'])}")
    if soak.kv_bytes_left is None:
        parts.append("KV bytes at the end not measured")
    elif soak.kv_bytes_left:
        parts.append(f"{bytes_text(soak.kv_bytes_left)} of KV in use with nothing in flight")
    else:
        parts.append("all KV bytes given back at the end")
    hours = f"{number(soak.hours)} h, {counted(soak.cancelled, 'stream')} closed by the client"
    return f"{soak.backend}: {'; '.join(parts)} ({hours})"


def soak_rows(found: SoakFigures) -> list[tuple[str, ...]]:
    """One row per backend and figure, under ``SOAK_HEADS``."""
    return [
        (
            soak.backend,
            drift.name,
            _amount(drift, drift.trend.typical if drift.trend else None),
            _signed(drift, drift.trend.slope_per_h if drift.trend else None),
            _signed(drift, drift.trend.low_per_h if drift.trend else None),
            _signed(drift, drift.trend.high_per_h if drift.trend else None),
            _limit(drift),
            _VERDICTS[drift.state],
        )
        for soak in found.backends
        for drift in soak.drifts
    ]


def _names(drifts: list[Drift]) -> str:
    return ", ".join(drift.name for drift in drifts)


def _growth(drift: Drift) -> str:
    return ABSENT if drift.trend is None else _signed(drift, drift.trend.slope_per_h)


def _limit(drift: Drift) -> str:
    return _amount(drift, drift.limit_per_h)


def _amount(drift: Drift, value: float | None) -> str:
    if value is None:
        return ABSENT
    return bytes_text(value) if drift.unit == "bytes" else f"{ms_text(value)} ms"


def _signed(drift: Drift, value: float | None) -> str:
    text = _amount(drift, value)
    return f"+{text}" if value is not None and value > 0 else text
