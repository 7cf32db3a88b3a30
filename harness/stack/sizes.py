"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from harness.errors import OptionError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_bytes(text: str, option: str) -> int:
    """Read ``16MiB``, ``1.5 GiB``, ``100MB`` or ``16777216``; raises OptionError.

    The binary units are powers of 1,024, the others powers of 1,000.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    size = 0.0
    if match and match[2] in _UNITS:
        size = float(match[1]) * _UNITS[match[2]]
    if size < 1 or not size.is_integer():
        raise OptionError(option, text, "a size such as 16MiB, 1.5GiB or 16777216 (bytes)")
    return int(size)


def format_bytes(size: int) -> str:
    """The shortest exact form in binary units: ``16MiB``, ``1000B``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
