"""``summary.json``: the figures for programs, in seconds and bytes, the unit in each name.

Each cell also carries the scalars that vLLM's benchmark writes, under its names and in its
units (``median_ttft_ms``, ``output_throughput``, ...), so that the same scripts read both.
Two differ in meaning: rates here are those of the measured window, where vLLM's are those
of its whole run; and a percentile that its sample is too small for is null. Absent and
infinite values are null. The same run directory always gives the same bytes.

Schema history
    1   first version
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from harness.analysis.percentiles import AdjustedPercentiles, Distribution
from harness.analysis.reconcile_types import Reconciled, Unreconciled
from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.verdict_types import BackendVerdict
from harness.records import Finding
from harness.report.units import milliseconds, without_folder
from harness.report.words import verdict_line

SUMMARY_SCHEMA_VERSION = 1

#: vLLM's benchmark name of a latency -> ours
_BENCHMARK_NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s"}
#: JSON has characters like these within strings alone.
_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n]")
#: Not for programs: drawn in the report, far larger than all the rest.
_LEFT_OUT = frozenset({"timeline", "cell"})


def summary_bytes(summary: RunSummary) -> bytes:
    """The file's content, see ``ascii_json``."""
    return ascii_json(summary_object(summary))


def ascii_json(content: object) -> bytes:
    """Plain values as JSON, indented, with a final newline, in ASCII.

    A server's words may hold characters that steer a terminal or turn text around (C1
    controls, bidi marks); as ``\\uXXXX`` they are read by programs alone.
    """
    text = msgspec.json.format(msgspec.json.encode(content)).decode()
    return _NOT_PLAIN.sub(_code_units, text).encode("ascii") + b"\n"


def _code_units(match: re.Match[str]) -> str:
    """A character as JSON escapes it: one UTF-16 code unit, or a surrogate pair."""
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def summary_object(summary: RunSummary) -> dict[str, Any]:
    """The file's content as plain dictionaries, lists and scalars."""
    manifest = summary.manifest
    return {
        "schema_version": SUMMARY_SCHEMA_VERSION,
        "run_id": manifest.run_id,
        "kvknee_version": manifest.kvknee_version,
        "status": manifest.status,
        "started_wall_s": manifest.t0_wall_s,
        "workload": plain(manifest.workload),
        "slo": plain(manifest.slo),
        "fingerprint": clean(manifest.fingerprint),
        "environment": clean(manifest.environment),
        "verdicts": [_verdict(item, summary) for item in summary.verdicts],
        "cells": [cell_object(item) for item in summary.cells],
        "scenario": _scenario(summary),
        "reconciled": [reconciled_object(item) for item in summary.reconciled],
        "fits": [plain(item) for item in summary.fits],
        "shared_gpus": [plain(item) for item in summary.shared_gpus],
        "skipped": [{**plain(item.cell), "reason": item.reason} for item in summary.skipped],
        "soak": plain(summary.soak),
        "found": [plain(item) for item in summary.found],
        "findings": [_finding(item) for item in summary.findings],
    }


def cell_object(figures: CellFigures) -> dict[str, Any]:
    """One cell: its key, our figures by group, and vLLM's scalars beside them."""
    own = {
        item.name: plain(getattr(figures, item.name))
        for item in dataclasses.fields(figures)
        if item.name not in _LEFT_OUT
    }
    return {**plain(figures.cell), **benchmark_scalars(figures), **own}


def benchmark_scalars(figures: CellFigures) -> dict[str, float | int | None]:
    """The scalars of vLLM's benchmark (``vllm bench serve --save-result``), by its names."""
    rates, counts = figures.throughput, figures.counts
    prompt, output = rates.prompt_tokens_per_s, rates.output_tokens_per_s
    scalars: dict[str, float | int | None] = {
        "duration": figures.window.length_s,
        "completed": counts.ok,
        "failed": counts.failed,
        "total_input_tokens": rates.counted_prompt_tokens,
        "total_output_tokens": rates.counted_output_tokens,
        "request_throughput": rates.requests_per_s,
        "request_goodput": rates.goodput_rps,
        "output_throughput": output,
        "total_token_throughput": _sum(prompt, output),
        "max_concurrent_requests": rates.max_in_flight,
    }
    for name, ours in _BENCHMARK_NAMES.items():
        found: Distribution = getattr(figures.latency, ours)
        scalars[f"mean_{name}_ms"] = milliseconds(found.mean)
        scalars[f"median_{name}_ms"] = milliseconds(found.value(50))
        scalars[f"std_{name}_ms"] = milliseconds(found.std)
        scalars[f"p95_{name}_ms"] = milliseconds(found.earned(95))
        scalars[f"p99_{name}_ms"] = milliseconds(found.earned(99))
    return scalars


def _sum(prompt: float | None, output: float | None) -> float | None:
    return None if prompt is None or output is None else prompt + output


def plain(value: object) -> Any:
    """Frozen types as JSON values; infinity and NaN become null."""
    if isinstance(value, Distribution | AdjustedPercentiles):
        return _percentiles(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def clean(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without the folders of this machine, by name."""
    return {
        key: without_folder(value) if isinstance(value, str) else value
        for key, value in sorted(facts.items())
    }


def _percentiles(value: Distribution | AdjustedPercentiles) -> dict[str, Any]:
    """``{"n": 20, "mean": ..., "p50": ..., "insufficient": ["p95", "p99"]}``."""
    found: dict[str, Any] = {
        "min" if f.name == "minimum" else "max" if f.name == "maximum" else f.name: plain(
            getattr(value, f.name)
        )
        for f in dataclasses.fields(value)
        if f.name != "percentiles"
    }
    found.update({f"p{item.p}": plain(item.value) for item in value.percentiles})
    found["insufficient"] = [f"p{item.p}" for item in value.percentiles if item.insufficient]
    return found


def _verdict(verdict: BackendVerdict, summary: RunSummary) -> dict[str, Any]:
    backend = plain(verdict.backend)
    backend["model"] = without_folder(verdict.backend.model)
    found = plain(verdict)
    for curve in found["confidence"]["curves"]:
        # it is drawn in the report, and follows from the terms
        del curve["curve"]
    return {
        **found,
        "backend": backend,
        "text": verdict_line(verdict, summary.manifest.slo),
    }


def _scenario(summary: RunSummary) -> dict[str, Any]:
    """The rows of the run's own scenario, with what follows from them; empty for other runs."""
    found: dict[str, Any] = plain(summary.scenario)
    shares = ("share", "budget_share", "used_bytes_each", "kept_share", "between_bytes")
    for name, rows in found.items():
        for row, source in zip(rows, getattr(summary.scenario, name), strict=True):
            derived = (key for key in shares if hasattr(source, key))
            row.update({key: plain(getattr(source, key)) for key in derived})
    return {name: rows for name, rows in found.items() if rows}


def reconciled_object(item: Reconciled | Unreconciled) -> dict[str, Any]:
    """One cell's memory: its key and its stages, each with what stays unexplained."""
    found: dict[str, Any] = {**plain(item.cell), **plain(item)}
    del found["cell"]
    if isinstance(item, Reconciled):
        found["stages"] = [
            {
                **plain(stage),
                "unexplained_bytes": stage.unexplained_bytes,
                "unexplained_share": stage.unexplained_share,
            }
            for stage in item.stages
        ]
    return found


def _finding(finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = plain(finding)
    return found
