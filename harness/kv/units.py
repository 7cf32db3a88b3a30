"""Sizes as people write them. GB is 10^9 bytes, GiB is 2^30: both accepted, never mixed up."""

from __future__ import annotations

import re

from harness.errors import OptionError

_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _FACTORS[f"{_letter}b"] = 1000**_power
    _FACTORS[f"{_letter}ib"] = 1024**_power
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str, option: str) -> int:
    """Bytes of ``24GiB`` (24 x 2^30), ``24GB`` (24 x 10^9) or a plain number of bytes.

    Raises OptionError for anything else; ``24G`` is refused because it could be either.
    """
    match = _SIZE.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _FACTORS:
        raise OptionError(
            option, text, "a size such as 24GiB (24 x 2^30 bytes) or 24GB (24 x 10^9 bytes)"
        )
    whole, _, fraction = match.group(1).partition(".")
    factor = _FACTORS[unit]
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def gib(amount: int) -> str:
    """``2.00 GiB``; below a tenth of one in MiB, then in bytes: small figures keep digits."""
    if amount >= 2**30 // 10 or amount < 0:
        return f"{amount / 2**30:,.2f} GiB"
    if amount >= 2**20 // 10:
        return f"{amount / 2**20:,.2f} MiB"
    return f"{amount:,} B"


def exact(amount: int) -> str:
    """``2,147,483,648 B = 2.00 GiB``."""
    short = gib(amount)
    return short if short.endswith(" B") else f"{amount:,} B = {short}"
