from __future__ import annotations

import pytest

from harness.errors import OptionError
from servers.contiguous.step_delay import VARIABLE, step_delay


def test_a_step_rests_as_long_as_the_environment_says() -> None:
    rested: list[float] = []
    rest = step_delay({VARIABLE: "20"}, rested.append)
    assert rest is not None
    rest()
    assert rested == [0.02]
    assert step_delay({}) is None and step_delay({VARIABLE: "0"}) is None


@pytest.mark.parametrize("text", ["x", "-1", "nan", "1e9"])
def test_what_is_no_delay_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=VARIABLE):
        step_delay({VARIABLE: text})
