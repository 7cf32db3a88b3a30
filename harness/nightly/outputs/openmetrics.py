"""``night.om``: a night's figures as OpenMetrics text for the *Nightly* dashboard. Pure.

Each sample is stamped with the end of the night, so that the file can be imported whenever::

    promtool tsdb create-blocks-from openmetrics night.om DATA

Names and labels are those of docs/dashboards.md. A figure that the night did not measure is left
out. (A page that is scraped has no such stamps, so this is no file for a textfile collector.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.errors import printable
from harness.nightly.night_types import Judged, Night
from harness.nightly.outputs.words import UNJUDGED
from harness.report.units import without_folder

#: Metric of the gate -> (name in Prometheus, what it is).
FIGURES: dict[str, tuple[str, str]] = {
    "memory_knee": (
        "kvknee_nightly_held_requests",
        "The memory knee: the last level at which no request waited for KV memory.",
    ),
    "output_tokens_per_s": (
        "kvknee_nightly_output_tokens_per_second",
        "Output tokens received in the measured window, per second.",
    ),
    "goodput_rps": (
        "kvknee_nightly_goodput_requests_per_second",
        "Requests that met every limit, per second.",
    ),
    "ttft_p95_s": ("kvknee_nightly_ttft_p95_seconds", "Time to first token, 95th percentile."),
    "tpot_p95_s": ("kvknee_nightly_tpot_p95_seconds", "Time per output token, 95th percentile."),
    "kv_bytes_per_token": (
        "kvknee_nightly_kv_bytes_per_token_held",
        "Measured KV bytes over the tokens held.",
    ),
}
VERDICT = "kvknee_nightly_gate_verdict"
ENDED = "kvknee_nightly_run_timestamp_seconds"
_VERDICT_HELP = "0 pass, 1 regression, 2 no verdict; of gated figures only."
_ENDED_HELP = "When the night ended, seconds since the epoch."


@dataclass
class _Family:
    """A gauge with its samples: labels, value."""

    name: str
    text: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)


def openmetrics_night(night: Night) -> str:
    """The whole file, ending in ``# EOF``."""
    # whole seconds: read alike as OpenMetrics and by tools of the older format
    stamp = round(night.at_wall_s + night.seconds)
    lines = [line for family in _families(night, stamp) for line in _lines(family, stamp)]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _families(night: Night, stamp: int) -> list[_Family]:
    verdicts = _Family(VERDICT, _VERDICT_HELP)
    ended = _Family(ENDED, _ENDED_HELP)
    figures = {metric: _Family(*names) for metric, names in FIGURES.items()}
    places: set[tuple[str, str]] = set()
    for item in night.judged:
        metric, value = item.series.metric.name, item.verdict.tonight
        labels = _labels(item, night)
        if item.verdict.gated:
            verdicts.samples.append(({**labels, "figure": metric}, float(_code(item))))
        if metric in figures and value is not None and math.isfinite(value):
            figures[metric].samples.append((labels, value))
        if (item.backend, item.model) not in places:
            places.add((item.backend, item.model))
            ended.samples.append((_place(item, night), float(stamp)))
    return [verdicts, ended, *figures.values()]


def _code(item: Judged) -> int:
    if item.verdict.name in UNJUDGED:
        return 2
    return 1 if item.verdict.name == "regressed" else 0


def _place(item: Judged, night: Night) -> dict[str, str]:
    return {
        "suite": night.suite,
        "backend": item.backend,
        "model": without_folder(item.model),
        "machine": night.machine,
    }


def _labels(item: Judged, night: Night) -> dict[str, str]:
    labels = {**_place(item, night), "run": item.run, "cell": item.series.cell}
    # a label without a value is the same as none
    return labels if item.level is None else {**labels, "level": str(item.level)}


def _lines(family: _Family, stamp: int) -> Iterator[str]:
    if not family.samples:
        return
    yield f"# HELP {family.name} {family.text}"
    yield f"# TYPE {family.name} gauge"
    for labels, value in family.samples:
        pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{family.name}{{{pairs}}} {value!r} {stamp}"


def _escaped(text: str) -> str:
    """On one line; backslash and quote as both formats escape them."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')
