"""Numbers of options: text in, a number within its limits out. Pure.

Python's own readers also take other scripts' digits and underscores (``1_0`` is 10); an
option takes the ten digits only, so that what was typed is what is meant.
"""

from __future__ import annotations

import re

from harness.errors import OptionError

#: of a prompt or an answer, and requests of a level
MAX_TOKENS = 10_000_000
MAX_REQUESTS = 10_000_000
MAX_REPEATS = 1_000
#: what JSON readers hold as a whole number
MAX_SEED = 2**63 - 1
#: 115 days; sockets and timers do not take just any number
MAX_SECONDS = 10_000_000
#: more digits than any limit above
_MAX_DIGITS = 20

_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20}")


def digits(text: str) -> int | None:
    """The whole number that ASCII digits write; None for anything else."""
    plain = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if plain else None


def decimal(text: str) -> float | None:
    """The number that ``12``, ``0.5`` or ``.5`` writes; None for anything else."""
    return float(text) if _DECIMAL.fullmatch(text) else None


def whole(option: str, text: str, *, most: int, least: int = 1) -> int:
    """A whole number between ``least`` and ``most``; raises OptionError."""
    number = digits(text)
    if number is None or not least <= number <= most:
        raise OptionError(option, text, f"a whole number between {least} and {most}")
    return number


def seconds(option: str, text: str, *, zero: bool = False) -> float:
    """Seconds, more than 0 unless ``zero``; raises OptionError."""
    number = decimal(text)
    if number is None or number > MAX_SECONDS or (number == 0 and not zero):
        least = "0 or more" if zero else "more than 0"
        raise OptionError(option, text, f"seconds, {least} and at most {MAX_SECONDS}")
    return number


def ratio(option: str, text: str) -> float:
    """A part of a whole, 0 to 1; raises OptionError."""
    number = decimal(text)
    if number is None or number > 1:
        raise OptionError(option, text, "a part of all requests between 0 and 1, such as 0.01")
    return number
