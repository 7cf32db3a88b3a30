"""Axes that start at zero."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from harness.report.drawing import from_zero


@pytest.mark.parametrize(("top", "shown"), [(12.5, 12.5), (0.0, 1.0)])
def test_an_axis_has_a_length_even_where_all_is_zero(top: float, shown: float) -> None:
    axes = Figure().subplots()
    # a warning of matplotlib would fail here
    from_zero(axes, top)
    assert axes.get_ylim() == (0.0, shown)
