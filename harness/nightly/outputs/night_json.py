"""``night.json``: a night for programs, with a version and stable names. Pure.

Values are in the metric's own unit (seconds, bytes, shares); what is absent, and what is no
finite number, is null. The nights of the baseline stand in ``kvknee history export``.
"""

from __future__ import annotations

import math
from typing import Any

from harness.nightly.night_types import Judged, Night, NightEvent, NightRun
from harness.nightly.outputs.headline import headline
from harness.nightly.outputs.words import cell_text, clear_since
from harness.report.summary_json import ascii_json
from harness.report.units import without_folder

#: Goes up when a name changes its meaning or goes away; new names do not count.
NIGHT_SCHEMA = 1


def night_bytes(night: Night) -> bytes:
    """The file's content: indented ASCII with a final newline."""
    return ascii_json(_plain(night_object(night)))


def night_object(night: Night) -> dict[str, Any]:
    """The same as plain dictionaries, lists and scalars."""
    said = headline(night)
    return {
        "schema": NIGHT_SCHEMA,
        "night_id": night.night_id,
        "suite": night.suite,
        "started_wall_s": night.at_wall_s,
        "seconds": night.seconds,
        "kvknee_version": night.kvknee_version,
        "machine": night.machine,
        "exit_code": night.exit_code,
        "outcome": said.word,
        "headline": said.text,
        "false_alarm_rate": night.limits.false_alarm_rate,
        "min_nights": night.limits.min_nights,
        "baseline_nights": night.limits.baseline_nights,
        "series": [_series(item) for item in night.judged],
        "runs": [_run(run) for run in night.runs],
        "events": [_event(event) for event in night.events],
        "setup_changes": list(night.setup_changes),
    }


def _series(item: Judged) -> dict[str, Any]:
    verdict, metric, tonight = item.verdict, item.series.metric, item.series.tonight
    return {
        "run": item.run,
        "backend": item.backend,
        "model": without_folder(item.model),
        "level": item.level,
        "cell": item.series.cell,
        "label": cell_text(item),
        "metric": metric.name,
        "better": metric.better,
        "is_share": metric.is_share,
        "gated": verdict.gated,
        "verdict": verdict.name,
        "reason": verdict.reason,
        "alarm": verdict.alarm,
        "ask_new_baseline": verdict.ask_new_baseline,
        "tonight": verdict.tonight,
        "repeats": list(tonight.repeats) if tonight else [],
        "requests": tonight.requests if tonight else None,
        "baseline": verdict.baseline,
        "nights": verdict.nights,
        "other_nights": item.series.other_nights,
        "change": verdict.change,
        "change_low": verdict.low,
        "change_high": verdict.high,
        "worse": verdict.worse,
        "threshold": verdict.threshold,
        "smallest_regression": item.sight.regression,
        "smallest_regression_power": item.sight.power,
        "night_spread": item.sight.night_spread,
        "since": _since(item),
    }


def _since(item: Judged) -> dict[str, Any] | None:
    since = item.since
    if since is None:
        return None
    return {
        "night": since.night,
        "change": since.change,
        "p_value": since.p_value,
        "clear": clear_since(item) is not None,
    }


def _run(run: NightRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "repeat": run.repeat,
        "exit_code": run.exit_code,
        "seconds": run.seconds,
        "folder": run.folder,
    }


def _event(event: NightEvent) -> dict[str, Any]:
    return {"at_wall_s": event.at_wall_s, "kind": event.kind, "text": event.text}


def _plain(value: Any) -> Any:
    """The same without what JSON cannot hold: NaN, infinities, and lone surrogates of names."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value
