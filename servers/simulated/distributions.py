"""Distributions as people write them: ``0.05``, ``20ms``, ``normal:50ms,5ms``. Pure.

A draw is never below 0 (a time) or 1 (a count): what falls below becomes that.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import OptionError

_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|us)?", re.ASCII)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
_MOST_S = 3600.0
_MOST_TOKENS = 4096
#: name -> what its numbers are
_SHAPES: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "uniform": ("lowest", "highest"),
    "normal": ("mean", "standard deviation"),
    "lognormal": ("median", "sigma"),
    "exp": ("mean",),
}
_EXPECTED = (
    'seconds ("0.05", "20ms") or uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEDIAN,SIGMA, '
    "exp:MEAN, such as lognormal:50ms,0.4"
)
_EXPECTED_COUNT = 'tokens ("1") or choice:1,3,4,2 (in turn) or uniform:1,4, up to 4096'


@dataclass(frozen=True)
class Duration:
    """A distribution of seconds, none below 0."""

    text: str
    shape: str
    numbers: tuple[float, ...]

    @property
    def constant_s(self) -> float | None:
        """The value that is always drawn; None when it varies."""
        return self.numbers[0] if self.shape == "constant" else None

    def sampler(self, rng: random.Random) -> Callable[[], float]:
        """Draws of this distribution, in seconds, from ``rng``."""
        first, *rest = self.numbers
        if self.shape == "uniform":
            return lambda: rng.uniform(first, rest[0])
        if self.shape == "normal":
            return lambda: max(0.0, rng.gauss(first, rest[0]))
        if self.shape == "lognormal":
            mu = math.log(first)
            return lambda: rng.lognormvariate(mu, rest[0])
        if self.shape == "exp":
            return lambda: rng.expovariate(1.0 / first)
        return lambda: first


@dataclass(frozen=True)
class Sizes:
    """How many tokens come at once: one number, several in turn, or a uniform range."""

    text: str = "1"
    turn: tuple[int, ...] = (1,)
    span: tuple[int, int] | None = None

    def split(self, tokens: int, rng: random.Random | None) -> list[int]:
        """``tokens`` cut into chunks; the last one holds what is left.

        ``rng`` is needed for a uniform range only.
        """
        found: list[int] = []
        left = tokens
        while left > 0:
            if self.span is not None and rng is not None:
                size = rng.randint(*self.span)
            else:
                size = self.turn[len(found) % len(self.turn)]
            found.append(min(size, left))
            left -= size
        return found


def parse_duration(text: str, option: str) -> Duration:
    """Read a distribution of seconds; raises OptionError."""
    name, colon, tail = text.strip().partition(":")
    shape, words = (name, tail.split(",")) if colon else ("constant", [name])
    names = _SHAPES.get(shape)
    if names is None or len(words) != len(names):
        raise OptionError(option, text, _EXPECTED)
    numbers = [_seconds(word.strip(), option, text) for word in words]
    if shape in ("lognormal", "exp") and numbers[0] <= 0:
        raise OptionError(option, text, f"a {names[0]} above 0")
    if shape == "uniform" and numbers[1] < numbers[0]:
        raise OptionError(option, text, "LOW,HIGH with LOW up to HIGH")
    if shape == "lognormal" and "s" in words[1]:
        raise OptionError(option, text, "a sigma without a unit: it is of the logarithm")
    return Duration(text.strip(), shape, tuple(numbers))


def parse_sizes(text: str, option: str) -> Sizes:
    """Read a number of tokens per chunk; raises OptionError."""
    name, colon, tail = text.strip().partition(":")
    if not colon:
        return Sizes(text.strip(), turn=(_count(name, option, text),))
    numbers = tuple(_count(word.strip(), option, text) for word in tail.split(","))
    if name == "choice":
        return Sizes(text.strip(), turn=numbers)
    if name == "uniform" and len(numbers) == 2 and numbers[0] <= numbers[1]:
        return Sizes(text.strip(), span=(numbers[0], numbers[1]))
    raise OptionError(option, text, _EXPECTED_COUNT)


def _seconds(word: str, option: str, text: str) -> float:
    match = _NUMBER.fullmatch(word)
    value = float(match[1]) * _UNITS[match[2] or ""] if match else math.inf
    if value > _MOST_S:
        raise OptionError(option, text, _EXPECTED)
    return value


def _count(word: str, option: str, text: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 6 and 1 <= int(word) <= _MOST_TOKENS):
        raise OptionError(option, text, _EXPECTED_COUNT)
    return int(word)
