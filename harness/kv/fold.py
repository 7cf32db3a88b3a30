"""Text for a terminal: lines folded between words, never between a number and its unit."""

from __future__ import annotations

import re
from collections.abc import Sequence

WIDTH = 80
#: narrower than this, a terminal has to break lines itself
LEAST_WIDTH = 40
_BOUND = "\N{NO-BREAK SPACE}"
#: a number, the kind of what is counted, and its first letter; a factor's "x" is no unit.
#: Or what a figure is, and the figure
_NUMBER_UNIT = re.compile(
    r"\d (?:(?:KV|attention|chunked|constant|cross|full|latent|null|query|shared|sliding|state|"
    r"usable) )*(?!x\b)[A-Za-z]"
    r"|\b(?:mean|median|p99|longest) \d"
)


def bound(text: str) -> str:
    """``text`` that ``fold`` does not break."""
    return text.replace(" ", _BOUND)


def fold(line: str, *, width: int, indent: int) -> list[str]:
    """``line`` in lines of ``width``, broken at spaces; a longer word stays whole."""
    first, *words = _NUMBER_UNIT.sub(lambda match: bound(match[0]), line).split(" ")
    folded = [first]
    for word in words:
        if len(folded[-1]) + 1 + len(word) > width:
            folded.append(" " * indent + word)
        else:
            folded[-1] += f" {word}"
    # plain spaces again, so that the text can be searched and copied
    return [part.replace(_BOUND, " ") for part in folded]


def wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Sentences of a section that is set in by two, the rest of each by four more."""
    return [part for line in lines for part in fold(line, width=width - 2, indent=4)]


def section(title: str, lines: Sequence[str]) -> str:
    """A title and its lines; nothing without lines."""
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns aligned right, the first one left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
