"""Sizes for people: two digits of GiB, or the exact bytes beside them."""

from __future__ import annotations


def gib(amount: int) -> str:
    """``2.00 GiB``; below a tenth of one in MiB, KiB or B: small figures keep digits."""
    if amount >= 2**30 // 10 or amount < 0:
        return f"{amount / 2**30:,.2f} GiB"
    if amount >= 2**20:
        return f"{amount / 2**20:,.2f} MiB"
    if amount >= 2**10:
        return f"{amount / 2**10:,.2f} KiB"
    return f"{amount:,} B"


def exact(amount: int) -> str:
    """``2,147,483,648 B = 2.00 GiB``."""
    short = gib(amount)
    return short if short.endswith(" B") else f"{amount:,} B = {short}"
