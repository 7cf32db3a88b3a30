"""Sizes and counts for people: at least three digits of a size, and its exact bytes beside.

Only the binary units are written (1 GiB is 2^30 bytes), whatever unit a size was given in.
"""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def short_size(amount: int) -> str:
    """``2.00 GiB``, ``64.0 MiB``, ``1,000.0 KiB``, ``512 B``: the unit that keeps the digits."""
    if amount < 1024:
        return f"{amount:,} B"
    value, power = amount / 1024, 0
    # what would round up to a whole next unit is written in that one
    while round(value, 1) >= 1024 and power + 1 < len(_UNITS):
        value, power = value / 1024, power + 1
    digits = 2 if round(value, 2) < 10 else 1
    return f"{value:,.{digits}f} {_UNITS[power]}"


def exact(amount: int) -> str:
    """``2,147,483,648 B = 2.00 GiB``."""
    short = short_size(amount)
    return short if short.endswith(" B") else f"{amount:,} B = {short}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 request``, ``2 requests``, ``2 batches`` where ``plural`` says so."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
