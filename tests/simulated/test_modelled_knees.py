"""The concurrency scenario finds the knees that modelled servers are known to have.

A level is judged only where client and server were on time, so this wants a quiet machine.
"""

from __future__ import annotations

import pytest

from tests.simulated.configurations import COUNT, configuration
from tests.simulated.knee_table import measure, table


@pytest.mark.benchmark
@pytest.mark.timeout(2400)
def test_the_reported_knees_are_those_of_the_models() -> None:
    rows = measure([configuration(seed) for seed in range(COUNT)])
    assert len(rows) == COUNT >= 20
    assert all(row.same for row in rows), "\n" + table(rows)
