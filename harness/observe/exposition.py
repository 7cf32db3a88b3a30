"""Prometheus text (format 0.0.4) in, the few samples that are needed out.

vLLM's page is 55 kB and 500 samples, of which about thirty are needed, and an hour has
3,600 pages. prometheus_client's parser reads a line character by character, so a
``PageReader`` hands it only the lines that are wanted, and only once per label set: the
part before the value is remembered and the next page's line costs a lookup and a float.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


class MetricsUnavailableError(Exception):
    """A page that says nothing: empty, or no Prometheus text. The load goes on."""


@dataclass(frozen=True)
class LabelledValue:
    """One sample of a metric."""

    labels: Mapping[str, str]
    value: float


#: sample name -> its samples; a name without samples is a missing key
Page = Mapping[str, list[LabelledValue]]

_Series = tuple[str, Mapping[str, str]]


class PageReader:
    """Reads many pages of one target; keeps the samples whose name is in ``wanted``."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = frozenset(wanted)
        self._known: dict[str, _Series] = {}

    def read(self, text: str) -> Page:
        """The wanted samples of one page; raises MetricsUnavailableError.

        Values that are NaN or infinite say nothing and are left out.
        """
        page: dict[str, list[LabelledValue]] = {}
        for line in text.splitlines():
            head, value = _split(line)
            series = self._known.get(head)
            if series is None:
                if _name_of(head) not in self._wanted:
                    continue
                series = self._known[head] = _parse_series(line)
            number = _parse_number(value, line)
            if math.isfinite(number):
                page.setdefault(series[0], []).append(LabelledValue(series[1], number))
        if not page:
            check_exposition(text)
        return page


def check_exposition(text: str) -> None:
    """Raise MetricsUnavailableError unless ``text`` is Prometheus text up to a first sample."""
    if not text.strip():
        raise MetricsUnavailableError("empty page")
    try:
        # the parser is lazy: on a good page this ends at its first family
        found = any(family.samples for family in text_string_to_metric_families(text))
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        start = text.strip().splitlines()[0][:40]
        raise MetricsUnavailableError(f"no Prometheus text, starts with {start!r}") from error
    if not found:
        raise MetricsUnavailableError("page without samples")


def _split(line: str) -> tuple[str, str]:
    """(name and labels, value and timestamp): no value contains a brace, labels may."""
    brace = line.rfind("}")
    if brace >= 0:
        return line[: brace + 1], line[brace + 1 :]
    parts = line.split(maxsplit=1)
    return (parts[0], parts[1]) if len(parts) == 2 else (line, "")


def _name_of(head: str) -> str:
    return head.partition("{")[0].strip()


def _parse_series(line: str) -> _Series:
    try:
        for family in text_string_to_metric_families(line + "\n"):
            for sample in family.samples:
                return sample.name, dict(sample.labels)
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        raise MetricsUnavailableError(f"malformed line {line[:60]!r}") from error
    raise MetricsUnavailableError(f"malformed line {line[:60]!r}")


def _parse_number(text: str, line: str) -> float:
    try:
        return float(text.split(maxsplit=1)[0])
    except (ValueError, IndexError):
        raise MetricsUnavailableError(f"malformed line {line[:60]!r}") from None
