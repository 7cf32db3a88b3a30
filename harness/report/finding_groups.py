"""Findings of one kind together: their remedy is read once, their cells in a list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records import Finding, Loop


@dataclass(frozen=True)
class FindingGroup:
    """Findings that share code, severity and remedy, in the order of the first of each."""

    code: str
    severity: str
    remedy: str
    #: (where, what) of each: the cell's label, empty for the whole run, and its text
    items: tuple[tuple[str, str], ...]


def grouped(findings: Iterable[Finding], loop: Loop = "closed") -> list[FindingGroup]:
    """The findings by kind."""
    groups: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for finding in findings:
        where = finding.cell.label_in(loop) if finding.cell else ""
        key = (finding.code, finding.severity, finding.remedy)
        groups.setdefault(key, []).append((where, finding.text))
    return [FindingGroup(*key, tuple(items)) for key, items in groups.items()]
