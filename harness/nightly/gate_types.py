"""What the gate is given and what it answers: frozen, None where absent. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from harness.nightly.metrics import Metric

VerdictName = Literal[
    "ok", "regressed", "improved", "insufficient samples", "no comparable baseline", "unstable"
]

#: stands for zero where a logarithm is taken
NOTHING = 1e-9


@dataclass(frozen=True)
class GateLimits:
    """How strict the gate is; the reasons stand in ``harness.nightly.gate``.

    ``false_alarm_rate`` is the family's, per night; ``window_share`` of it is spent on the mean
    of the last ``window_nights`` nights, ``margin_share`` is not spent.
    """

    baseline_nights: int = 90
    min_nights: int = 5
    min_repeats: int = 3
    max_gated: int = 8
    false_alarm_rate: float = 0.01
    window_nights: int = 3
    window_share: float = 0.05
    margin_share: float = 0.05
    #: a gate that could not see a regression below this share calls the series unstable
    unstable_share: float = 0.5
    #: an improvement beyond this share of the baseline is not believed as it stands
    implausible_share: float = 0.3
    seed: int = 20

    @property
    def night_share(self) -> float:
        """The share of the false-alarm rate that is spent on the night alone."""
        return 1.0 - self.window_share - self.margin_share


@dataclass(frozen=True)
class Reading:
    """One night's figure of one cell and metric: a value per repeat, in the metric's unit.

    ``requests`` is the smallest number of requests behind a repeat; None where the figure does
    not come from requests.
    """

    night: str
    repeats: tuple[float, ...]
    requests: int | None = None

    @cached_property
    def value(self) -> float:
        """The mean of the repeats."""
        return math.fsum(self.repeats) / len(self.repeats)

    @cached_property
    def log_value(self) -> float:
        """Its logarithm; a figure of zero is a loss of nearly everything."""
        return math.log(max(self.value, NOTHING))

    @cached_property
    def sd(self) -> float:
        """Standard deviation of the repeats; 0 for a single one."""
        return _sd(self.repeats)

    @cached_property
    def log_sd(self) -> float:
        """Standard deviation of the repeats' logarithms."""
        return _sd([math.log(max(value, NOTHING)) for value in self.repeats])


def _sd(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


@dataclass(frozen=True)
class Series:
    """One cell and metric: tonight's reading and its baseline, oldest night first.

    The baseline holds comparable good nights only; a night without the metric is not in it.
    ``other_nights`` counts the nights of another fingerprint, for the verdict's words.
    """

    cell: str
    metric: Metric
    tonight: Reading | None
    baseline: tuple[Reading, ...]
    gated: bool
    other_nights: int = 0


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one series.

    ``change`` is tonight over the baseline minus 1 (a difference for shares), ``low`` and
    ``high`` its 95 % interval by bootstrap over tonight's repeats; ``worse`` is the change with
    its sign turned so that positive is worse. ``threshold`` is the smallest change for the worse
    that would have been called one tonight. None where it cannot be said.
    """

    cell: str
    metric: str
    name: VerdictName
    gated: bool
    reason: str
    tonight: float | None = None
    baseline: float | None = None
    nights: int = 0
    change: float | None = None
    low: float | None = None
    high: float | None = None
    worse: float | None = None
    threshold: float | None = None
    #: an improvement too large to be believed: look, then mark a new baseline
    ask_new_baseline: bool = False

    @property
    def alarm(self) -> bool:
        """True when this alone fails the night."""
        return self.gated and self.name == "regressed"

    @property
    def kept_out(self) -> bool:
        """True when the reading must not enter later baselines."""
        return self.name == "regressed" or self.ask_new_baseline
