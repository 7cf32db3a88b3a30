"""Findings about what the run directory holds: files without content, impossible records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.analysis.table import CellTable
from harness.kv.units import counted
from harness.manifest import Manifest
from harness.records import CellKey, Finding

#: what a run cannot do without
_WITHOUT = {
    "records.jsonl": "no request can be shown",
    "events.jsonl": "when levels began and closed is unknown, ramp and drain are counted with "
    "the rest, and no level gives a verdict",
}


def absent_findings(absent: Mapping[str, str]) -> list[Finding]:
    """Journals of which nothing came; ``absent`` says why, by file name."""
    return [
        Finding(
            code="file_missing",
            severity="invalid" if name in _WITHOUT else "warning",
            text=f"{name} {why}: {_WITHOUT.get(name, 'what it held is absent')}.",
            remedy="Copy the whole run directory; if it was never written, repeat the run.",
        )
        for name, why in sorted(absent.items())
    ]


def unsound_finding(count: int) -> list[Finding]:
    """Records left out because no load can have written them."""
    if not count:
        return []
    return [
        Finding(
            code="damaged_records",
            severity="warning",
            text=f"{counted(count, 'record')} of records.jsonl "
            f"{'holds' if count == 1 else 'hold'} impossible figures (a negative count, more "
            "tokens than were asked for, arrays of unequal length) and "
            f"{'is' if count == 1 else 'are'} missing from every figure.",
            remedy="Check the disk and whether the file was edited; repeat the run.",
        )
    ]


def backend_findings(
    manifest: Manifest, marks: Iterable[CellKey], tables: Mapping[CellKey, CellTable]
) -> list[Finding]:
    """A manifest without backends, and requests of backends that it does not name."""
    known = {info.name for info in manifest.backends}
    unknown = {cell.backend: 0 for cell in marks if cell.backend not in known}
    for cell, table in tables.items():
        if cell.backend not in known:
            unknown[cell.backend] = unknown.get(cell.backend, 0) + table.n
    remedy = "Use the manifest that the run wrote, or repeat the run."
    found = [
        Finding(
            code="unknown_backend",
            severity="invalid",
            text=f"The run's files speak of {name}, which manifest.json does not name; its "
            f"{counted(requests, 'request')} {'is' if requests == 1 else 'are'} left out.",
            remedy=remedy,
        )
        for name, requests in sorted(unknown.items())
    ]
    if not known:
        text = "manifest.json names no backend, so nothing can be shown."
        found.insert(0, Finding(code="no_backend", severity="invalid", text=text, remedy=remedy))
    return found
