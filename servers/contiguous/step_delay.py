"""A hook for tests: the server made slower on purpose, by a rest after each step.

``KVKNEE_TEST_STEP_DELAY_MS=20`` adds 20 ms to every decode step and prefill chunk, so that a
test of the nightly gate has a real regression to find. It is read from the environment alone and
stated nowhere: not by ``/version``, not among the metrics. A slower build does not say so either.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping

from harness.errors import OptionError

VARIABLE = "KVKNEE_TEST_STEP_DELAY_MS"
_MOST_MS = 10_000.0


def step_delay(
    environment: Mapping[str, str], sleep: Callable[[float], None] = time.sleep
) -> Callable[[], None] | None:
    """The rest after a step; None when none is asked for. Raises OptionError for no number."""
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    try:
        delay_ms = float(text)
    except ValueError:
        delay_ms = math.nan
    if not 0.0 <= delay_ms <= _MOST_MS:
        raise OptionError(VARIABLE, text, f"milliseconds, 0 to {_MOST_MS:g}")
    return functools.partial(sleep, delay_ms / 1000.0) if delay_ms else None
