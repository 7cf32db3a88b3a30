"""Traces of real traffic: what their lines say. Pure.

Read as they are: CSV with a header, or one JSON object per line, with the columns of

Azure      TIMESTAMP (date and time), ContextTokens, GeneratedTokens
Mooncake   timestamp (milliseconds), input_length, output_length, hash_ids
plain      arrival_s (seconds), prompt_tokens, output_tokens

Azure: Azure/AzurePublicDataset; Mooncake: kvcache-ai/Mooncake, FAST'25. A hash id stands
for one block of 512 prompt tokens and all before it: equal ids are equal prefixes.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

_MOST_TOKENS = 10_000_000
_MOST_ID = 2**31 - 1
_MOST_S = 1e10
#: seconds may have more digits than Python's clock keeps
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d{1,12})?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DECIMAL = re.compile(r"\d{1,15}(\.\d{0,15})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,10}", re.ASCII)


class TraceRow(NamedTuple):
    """One request of a trace."""

    #: seconds from the replay's start
    at_s: float
    prompt_tokens: int
    output_tokens: int
    #: ids of the prompt's leading blocks; empty: it shares nothing
    blocks: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Of prompt and answer together."""
        return self.prompt_tokens + self.output_tokens


class Requests:
    """A list of requests."""

    rows: tuple[TraceRow, ...]

    @property
    def usual(self) -> tuple[int, int]:
        """Median prompt and output tokens: what a table can name the list by."""
        return (
            max(1, int(median(row.prompt_tokens for row in self.rows))),
            max(1, int(median(row.output_tokens for row in self.rows))),
        )

    @property
    def longest(self) -> tuple[int, int]:
        """(prompt, output) of the request with the most tokens."""
        row = max(self.rows, key=lambda row: row.tokens)
        return row.prompt_tokens, row.output_tokens


class TraceError(Exception):
    """A line that cannot be read; the text names the line, the column and what is wrong."""


class _Columns(NamedTuple):
    time: str
    prompt: str
    output: str
    blocks: str | None
    seconds: Callable[[object], float | None]
    #: what the time must be, in words
    expected: str


def _date_s(value: object) -> float | None:
    """Seconds since the epoch of ``2023-11-16 18:15:46.6805900``, UTC where nothing is said."""
    found = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    day, time, fraction, zone = found.groups()
    try:
        moment = datetime.datetime.fromisoformat(f"{day}T{time}{zone or '+00:00'}")
    except ValueError:
        return None
    return moment.timestamp() + float(fraction or 0)


def _number(value: object) -> float | None:
    if isinstance(value, str):
        text = value.strip()
        return float(text) if _DECIMAL.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST_S * 1000 else None


def _milliseconds_s(value: object) -> float | None:
    number = _number(value)
    return None if number is None else number / 1000


_FORMATS = (
    _Columns(
        *("TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
        _date_s,
        "a date and time such as 2023-11-16 18:15:46.6805900",
    ),
    _Columns(
        *("timestamp", "input_length", "output_length", "hash_ids"),
        _milliseconds_s,
        "milliseconds, 0 or more",
    ),
    _Columns(*("arrival_s", "prompt_tokens", "output_tokens", None), _number, "seconds, 0 or more"),
)
_KNOWN = "; or ".join(f"{c.time}, {c.prompt}, {c.output}" for c in _FORMATS)


def parse_trace(lines: Iterable[str]) -> tuple[TraceRow, ...]:
    """The requests in order of time, the first at 0; raises TraceError.

    ``lines`` are those of the file, a byte order mark at its start allowed. Requests of
    one time keep their order.
    """
    numbered = _numbered(lines)
    first = next(numbered, None)
    if first is None:
        raise TraceError("it is empty")
    number, text = first
    if text.lstrip().startswith("{"):
        rows = list(_json_rows(number, text, numbered))
    else:
        rows = list(_csv_rows(number, text, numbered))
    if not rows:
        raise TraceError("it has a header and no request")
    start_s = min(row.at_s for row in rows)
    # microseconds: a date in seconds keeps no more digits, and nobody can send more exactly
    moved = (row._replace(at_s=round(row.at_s - start_s, 6)) for row in rows)
    return tuple(sorted(moved, key=lambda row: row.at_s))


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, numbered from 1."""
    for number, line in enumerate(lines, 1):
        text = line.removeprefix("\ufeff").rstrip("\r\n") if number == 1 else line.rstrip("\r\n")
        if text.strip():
            yield number, text


def _json_rows(number: int, text: str, rest: Iterator[tuple[int, str]]) -> Iterator[TraceRow]:
    columns = None
    while True:
        try:
            item = msgspec.json.decode(text.encode())
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            item = None
        if not isinstance(item, dict):
            raise TraceError(f"line {number}: no JSON object; every line must be one")
        columns = columns or _columns(number, list(item))
        yield _row(number, columns, item)
        following = next(rest, None)
        if following is None:
            return
        number, text = following


def _csv_rows(number: int, text: str, rest: Iterator[tuple[int, str]]) -> Iterator[TraceRow]:
    names = [name.strip() for name in _cells(number, text)]
    columns = _columns(number, names)
    for at, line in rest:
        cells = _cells(at, line)
        if len(cells) != len(names):
            raise TraceError(f"line {at}: {len(cells)} columns, the header has {len(names)}")
        yield _row(at, columns, dict(zip(names, cells, strict=True)))


def _cells(number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise TraceError(f"line {number}: no CSV ({error})") from error


def _columns(number: int, names: Sequence[str]) -> _Columns:
    for columns in _FORMATS:
        if {columns.time, columns.prompt, columns.output} <= set(names):
            return columns
    raise TraceError(f"line {number}: no columns of a trace; expected {_KNOWN}")


def _row(number: int, columns: _Columns, item: Mapping[str, object]) -> TraceRow:
    at_s = columns.seconds(item.get(columns.time))
    if at_s is None or at_s > _MOST_S:
        raise _wrong(number, columns.time, item, columns.expected)
    blocks: tuple[int, ...] = ()
    if columns.blocks is not None and item.get(columns.blocks) is not None:
        blocks = _ids(number, columns.blocks, item)
    return TraceRow(
        at_s,
        _tokens(number, columns.prompt, item),
        _tokens(number, columns.output, item),
        blocks,
    )


def _tokens(number: int, name: str, item: Mapping[str, object]) -> int:
    value = item.get(name)
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
        raise _wrong(number, name, item, f"a whole number between 1 and {_MOST_TOKENS}")
    return value


def _ids(number: int, name: str, item: Mapping[str, object]) -> tuple[int, ...]:
    value = item[name]
    good = isinstance(value, list) and all(type(i) is int and 0 <= i <= _MOST_ID for i in value)
    if not isinstance(value, list) or not good:
        raise _wrong(number, name, item, f"a list of whole numbers between 0 and {_MOST_ID}")
    return tuple(value)


def _wrong(number: int, name: str, item: Mapping[str, object], expected: str) -> TraceError:
    shown = repr(item[name])[:40] if name in item else "missing"
    return TraceError(f"line {number}: {name} is {shown}; expected {expected}")
