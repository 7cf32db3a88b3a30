"""What msgspec says of a suite that is wrong, with what would be right. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

import msgspec

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$([^`]*)`)?", re.DOTALL)
#: ``.run[0]`` -> ``.run[]``
_PLACE = re.compile(r"\[\d+\]")
_PATTERN = re.compile(r"`str` matching regex '(.*?)'(?= - at )")


def explained(
    said: str, tables: Mapping[str, type[msgspec.Struct]], patterns: Mapping[str, str]
) -> str:
    """``said`` with the keys that are right, and patterns in words.

    ``tables`` is by place, such as ``.run[]``; ``patterns`` by regular expression.
    """
    if "integer string conversion" in said:
        return "holds a number of thousands of digits, which no key takes"
    unknown = _UNKNOWN.fullmatch(said)
    if unknown is not None:
        table = tables.get(_PLACE.sub("[]", unknown[2] or ""))
        keys = table.__struct_fields__ if table is not None else ()
        near = difflib.get_close_matches(unknown[1], keys, n=2) or keys
        return f"{said}; expected one of {', '.join(near)}" if keys else said
    return _PATTERN.sub(lambda found: patterns.get(_plain(found[1]), found[0]), said)


def _plain(shown: str) -> str:
    """A regular expression as it is, from how it is shown."""
    return shown.replace("\\\\", "\\")
