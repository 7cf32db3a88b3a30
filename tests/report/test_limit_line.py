"""Where the name of a limit stands: curves must not run through it."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from harness.report.curves import limit_line


@pytest.mark.parametrize(
    ("value", "place"),
    [
        # of an axis from 0 to 100: below 9 % the name has no room underneath
        (5.0, "bottom"),
        (12.0, "top"),
        (24.0, "top"),
        (60.0, "bottom"),
    ],
)
def test_a_low_limit_has_its_name_below(value: float, place: str) -> None:
    axes = Figure().subplots()
    axes.set_ylim(0, 100)
    limit_line(axes, value, "SLO 50 ms")
    (name,) = axes.texts
    assert name.get_text() == "SLO 50 ms"
    # the side of the text that touches the line
    assert name.get_va() == place
