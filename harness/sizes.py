"""Sizes in bytes as people write them. GB is 10^9 bytes, GiB is 2^30: never mixed up."""

from __future__ import annotations

import re
from decimal import Decimal

from harness.errors import OptionError, shortened

_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _FACTORS[f"{_letter}b"] = 1000**_power
    _FACTORS[f"{_letter}ib"] = 1024**_power
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
#: more than any machine has; a size beyond it is a mistake
MAX_BYTES = 2**60
_EXPECTED = "a size such as 16MiB (2^20 bytes each), 16MB (10^6) or 16777216 (bytes)"


def parse_size(text: str, option: str, least: int = 1) -> int:
    """Bytes of ``16MiB``, ``1.5 GiB``, ``100MB`` or ``16777216``; raises OptionError.

    ``24G`` is refused, because it could be either; so is what is no whole byte, or fewer
    bytes than ``least``.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match and match[2] in ("k", "m", "g", "t"):
        _refuse_ambiguous(text, option, match[1], match[2].upper())
    size = Decimal(-1)
    if match and match[2] in _FACTORS:
        size = Decimal(match[1]) * _FACTORS[match[2]]
    if size > MAX_BYTES:
        raise OptionError(option, text, "at most 2^60 bytes (1,048,576 TiB)")
    if size < least or size != int(size):
        raise OptionError(option, text, _EXPECTED)
    return int(size)


def _refuse_ambiguous(text: str, option: str, number: str, letter: str) -> None:
    power = "KMGT".index(letter) + 1
    number = shortened(number, 20)
    decimal = f"{number}{letter}B (10^{3 * power} bytes each)"
    binary = f"{number}{letter}iB (2^{10 * power} bytes each)"
    raise OptionError(option, text, f"{decimal} or {binary}: {letter} could be either")


def exact_size(size_bytes: int) -> str:
    """The shortest exact form, as flags take it: ``16MiB``, ``1000B``."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes % _FACTORS[unit.lower()] == 0:
            return f"{size_bytes // _FACTORS[unit.lower()]}{unit}"
    return f"{size_bytes}B"


def readable_size(size_bytes: int) -> str:
    """For people, to four digits: ``16777216`` is ``16 MiB``."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= _FACTORS[unit.lower()]:
            return f"{size_bytes / _FACTORS[unit.lower()]:.4g} {unit}"
    return f"{size_bytes} B"
