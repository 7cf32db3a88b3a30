"""Byte sizes as people write them: ``16MiB`` is 2^20 based, ``16MB`` 10^6 based."""

from __future__ import annotations

import re

from harness.errors import OptionError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)")
_EXPECTED = "a size such as 256MiB (2^20 bytes each), 256MB (10^6) or plain bytes"


def parse_size(text: str, option: str) -> int:
    """Bytes of ``16MiB``, ``16MB``, ``1.5GiB`` or ``16777216``; raises OptionError."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise OptionError(option, text, _EXPECTED)
    size = (
        float(match[1]) * _UNITS[match[2]] if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    )
    if size < 1 or size != int(size):
        raise OptionError(option, text, _EXPECTED)
    return int(size)


def format_size(size_bytes: int) -> str:
    """For people: ``16777216`` is ``16 MiB``; exact only for whole multiples."""
    for unit in ("GiB", "MiB", "KiB"):
        base = _UNITS[unit.lower()]
        if size_bytes >= base:
            return f"{size_bytes / base:.4g} {unit}"
    return f"{size_bytes} B"
