"""Our client and vLLM's own agree on the medians of the same servers."""

from __future__ import annotations

import pytest

from tests.benchmarks.vllm_bench_agreement import measure


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.timeout(1800)
def test_medians_differ_by_at_most_five_percent_or_two_milliseconds() -> None:
    rows = measure(runs=5, concurrency=4, requests=40)
    assert all(row.agrees for row in rows), rows
