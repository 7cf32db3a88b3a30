"""A token event costs at most twice what it costs a client that throws it away."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.benchmarks.cpu_per_token import measure
from tests.benchmarks.paced import table


@pytest.mark.benchmark
@pytest.mark.timeout(300)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk (Debian's package)")
def test_at_most_twice_wrk() -> None:
    cost = measure(streams=500, rounds=2)
    print(table(cost.rows()))
    assert cost.ratio <= 2.0, table(cost.rows())
