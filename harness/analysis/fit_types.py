"""Fitted laws with their confidence, as the report shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``kv_bytes``   bytes in use against places for tokens, and a constant per request
#: ``ttft``       a + b n + c n^2 over prompt tokens n: prefill's square
#: ``tpot``       a + b n over the mean context n: what decoding reads from memory
#: ``cache_off``  a + b n over the context n of each token, where nothing is cached
FitKind = Literal["kv_bytes", "ttft", "tpot", "cache_off"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether ``value`` lies inside."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Fit:
    """One fitted law of a backend, or why there is none (then ``terms`` is empty)."""

    backend: str
    mode: str
    kind: FitKind
    #: constant, per token, per token squared, as far as the law has them; bytes or seconds. The
    #: constant of ``kv_bytes`` is per request. None: the data cannot tell it apart
    terms: tuple[Interval | None, ...] = ()
    #: observations: samples, requests, or gaps
    n: int = 0
    #: smallest and largest length (tokens) that the fit rests on
    lengths: tuple[float, float] | None = None
    #: root of the mean squared residual, in the unit of what is fitted
    rms: float | None = None
    #: what theory says of slope and constant; None where it says nothing
    expected_slope: float | None = None
    expected_constant: float | None = None
    absent: str | None = None

    @property
    def slope_error(self) -> float | None:
        """(fitted slope - theory) / theory; None without either."""
        slope = self.terms[1] if len(self.terms) > 1 else None
        if slope is None or not self.expected_slope:
            return None
        return slope.value / self.expected_slope - 1.0
