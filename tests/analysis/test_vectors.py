"""The vectorised arithmetic against the same definitions written as plain loops."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import harness.analysis
from harness.analysis.latency import measure_latency, request_times
from harness.analysis.memory import client_tokens_held
from harness.analysis.percentiles import distribution
from harness.analysis.table import CellTable, build_tables
from harness.analysis.throughput import measure_throughput
from harness.analysis.windows import LevelMarks, counted_mask, measure_window
from harness.records import RequestRecord, token_times_us
from harness.workload import Slo
from tests.support.fake_records import cell_of, failure, record
from tests.support.fake_server import PAGED

CELL = cell_of(PAGED, 1)


@st.composite
def requests(draw: st.DrawFn) -> list[RequestRecord]:
    """One user's requests, back to back, some failed, some with several tokens an event."""
    made: list[RequestRecord] = []
    now = 0.0
    for seq in range(draw(st.integers(1, 12))):
        gaps = tuple(draw(st.lists(st.integers(1, 400_000), min_size=0, max_size=8)))
        took = sum(gaps) * 1e-6 + draw(st.integers(1, 50)) * 1e-3
        common = {"user": 0, "t_intended_s": now, "t_sent_s": now, "t_end_s": now + took}
        if not gaps or draw(st.integers(0, 5)) == 0:
            made.append(failure(CELL, seq, **common))
        else:
            per_event = tuple(draw(st.integers(1, 4)) for _ in gaps)
            made.append(
                record(CELL, seq, token_us=gaps, token_n=per_event,
                       output_tokens=sum(per_event), **common)
            )  # fmt: skip
        now += took
    return made


def times_s(item: RequestRecord) -> list[float]:
    return [(item.t_sent_s or 0.0) + us * 1e-6 for us in token_times_us(item)]


@settings(max_examples=80, deadline=None)
@given(requests(), st.floats(0.1, 3.0))
def test_figures_equal_plain_loops(made: list[RequestRecord], close: float) -> None:
    table: CellTable = build_tables(made)[CELL]
    opened = made[0].t_end_s
    window = measure_window(table, LevelMarks(users=1, start_s=0.0, close_s=opened + close))
    counted = counted_mask(table, window)
    times = request_times(table)
    latency = measure_latency(table, counted, times)
    rates = measure_throughput(table, window, counted, times, Slo())

    chosen = [r for r in made if opened <= (r.t_sent_s or 0) <= opened + close]
    good = [r for r in chosen if r.outcome == "ok"]
    ttft = [r.token_us[0] * 1e-6 for r in good]
    tpot = [
        (token_times_us(r)[-1] - r.token_us[0]) * 1e-6 / (r.output_tokens - 1)
        for r in good
        if r.output_tokens is not None and r.output_tokens > 1
    ]
    assert latency.ttft_s.n == len(ttft)
    assert latency.tpot_s.n == len(tpot)
    assert latency.itl_s.n == sum(len(r.token_us) - 1 for r in good)
    if ttft:
        assert latency.ttft_s.mean == pytest.approx(np.mean(ttft))
        assert latency.ttft_s.value(95) == pytest.approx(np.percentile(ttft, 95))
    if tpot:
        assert latency.tpot_s.mean == pytest.approx(np.mean(tpot))
    edge = 2e-6
    sure = unsure = 0
    for item in made:
        for at, n in zip(times_s(item), item.token_n or (), strict=True):
            if item.outcome == "ok":
                sure += n * (opened + edge < at < opened + close - edge)
                near = min(abs(at - opened), abs(at - opened - close))
                # a little wider: at the edge itself rounding must not make it neither
                unsure += n * (near <= edge + 1e-9)
    arrived = (rates.output_tokens_per_s or 0.0) * close
    assert sure - 1e-6 <= arrived <= sure + unsure + 1e-6


@settings(max_examples=60, deadline=None)
@given(requests(), st.lists(st.floats(0.0, 6.0), min_size=1, max_size=6, unique=True))
def test_tokens_held_equal_plain_loops(made: list[RequestRecord], at: list[float]) -> None:
    at = sorted(at)
    held = client_tokens_held(build_tables(made)[CELL], np.array(at))
    for moment, found in zip(at, held, strict=True):
        expected = 0
        for item in made:
            arrivals = times_s(item)
            near = any(abs(moment - t) < 1e-6 for t in arrivals)
            if near:  # at the very instant either answer is right
                expected = -1
                break
            if arrivals and arrivals[0] < moment < arrivals[-1]:
                pairs = zip(arrivals, item.token_n or (), strict=True)
                expected += item.asked_prompt_tokens + sum(n for t, n in pairs if t < moment)
        if expected >= 0:
            assert found == pytest.approx(expected)


def test_b35_figures_are_exact_not_bucketed() -> None:
    # a histogram of two significant digits would say 580, above the largest value
    found = distribution(np.array([0.575] * 20))
    assert found.value(50) == 0.575
    assert found.value(99) == 0.575
    assert found.maximum == 0.575


def test_the_analysis_imports_no_io_no_clock_no_load_generator() -> None:
    allowed = {
        "__future__", "array", "collections", "dataclasses", "hashlib", "math", "typing",
        "functools", "itertools", "numpy", "msgspec", "re",
    }  # fmt: skip
    inside = (
        "harness.analysis.", "harness.errors", "harness.kv.", "harness.manifest",
        "harness.records", "harness.workload",
        "harness.observe.names", "harness.observe.series", "harness.plan.proportions",
        "harness.plan.search_events", "harness.plan.search_reasons", "harness.plan.search_types",
        "harness.plan.sequential",
    )  # fmt: skip
    for path in sorted(Path(harness.analysis.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in found:
                assert name.split(".")[0] in allowed or name.startswith(inside), (path.name, name)
