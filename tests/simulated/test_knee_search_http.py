"""The search over real HTTP, against servers whose knee the oracle knows.

All ten are in ``tests.simulated.knee_search_table``.
"""

from __future__ import annotations

import pytest

from tests.simulated.knee_search_table import search, server


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_search_finds_the_knee_of_the_model(seed: int) -> None:
    row = search(server(seed))
    assert row.same, row
