"""Findings about a run as a whole: how it ended, what was lost, what was repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.analysis.table import CellTable
from harness.analysis.windows import LevelMarks
from harness.kv.units import counted
from harness.manifest import Manifest
from harness.records import CellKey, Finding, RunEvent

#: Share of repeated prompts beyond which a prefix cache can answer for the model.
REPEATED_PROMPTS = 0.01


def run_findings(
    manifest: Manifest, events: Iterable[RunEvent], damaged: Mapping[str, int]
) -> list[Finding]:
    """Findings about the run as a whole."""
    found: list[Finding] = []
    interrupted = False
    ended = manifest.status != "running"
    for event in events:
        if event.kind == "resumed":
            # what ended it before is mended, and its cells were done again
            interrupted = False
            found = [finding for finding in found if finding.code != "backend_lost"]
        interrupted |= event.kind == "interrupted"
        # the manifest's last version may have found no room on a full disk
        ended |= event.kind == "run_end"
        if event.kind == "backend_lost":
            found.append(_lost(event))
        if event.kind == "worker_lost":
            found.append(_worker_lost(event))
        if event.kind == "fault":
            found.append(_fault(event))
    if interrupted or manifest.status == "interrupted":
        found.append(
            Finding(
                code="interrupted",
                severity="warning",
                text="The run was interrupted; levels that had not closed give no verdict.",
                remedy="Run it again to the end; what was measured before stands.",
            )
        )
    if not ended:
        found.append(
            Finding(
                code="never_ended",
                severity="warning",
                text="The run never wrote its end: its process was killed or is still running.",
                remedy="When it has ended, rebuild this report; else run it again.",
            )
        )
    return found + [_damage(name, count) for name, count in sorted(damaged.items()) if count]


def prompt_findings(backend: str, tables: Sequence[CellTable]) -> list[Finding]:
    """Repeated prompts across all cells of one backend warm its prefix cache."""
    keys = np.concatenate([np.empty(0, np.uint64), *(table.prompt_key for table in tables)])
    distinct = int(np.unique(keys).size)
    if not keys.size or 1.0 - distinct / keys.size <= REPEATED_PROMPTS:
        return []
    return [
        Finding(
            code="prompts_not_unique",
            severity="warning",
            text=f"{backend}: {keys.size:,} requests had only "
            f"{counted(distinct, 'distinct prompt')}, so a prefix cache can answer for the model.",
            remedy="Use prompts that are unique from the first block on; check the generator.",
        )
    ]


def skipped_findings(marks: Mapping[CellKey, LevelMarks]) -> list[Finding]:
    """Levels that the run left out."""
    return [
        Finding(
            code="level_skipped",
            severity="warning",
            text=f"The level was skipped: {mark.skipped}.",
            remedy="Run it again once the reason is gone.",
            cell=cell,
        )
        for cell, mark in marks.items()
        if mark.skipped is not None and not mark.planned
    ]


def duplicate_findings(tables: Iterable[CellTable]) -> list[Finding]:
    """Records that stood in the run directory more than once."""
    total = sum(table.duplicates for table in tables)
    if not total:
        return []
    return [
        Finding(
            code="duplicate_records",
            severity="note",
            text=f"{counted(total, 'record')} appeared again (same worker and number); each counts "
            "once.",
            remedy="Nothing to do; a worker sent its last report again.",
        )
    ]


def _lost(event: RunEvent) -> Finding:
    name = event.cell.backend if event.cell else str(event.detail.get("backend", "a backend"))
    return Finding(
        code="backend_lost",
        severity="invalid",
        text=f"{name} stopped answering {'during the level' if event.cell else 'before its turn'}"
        "; the run ended there.",
        remedy="Look at the last lines of its log; start it again and repeat the run.",
        cell=event.cell,
    )


def _worker_lost(event: RunEvent) -> Finding:
    """A process of the load died: how many of its records, and how much time, are missing."""
    detail = event.detail
    known, unshipped_s = detail.get("records_lost"), detail.get("unshipped_s")
    what = "its records since its last shipment"
    if isinstance(known, int) and known:
        what = f"{counted(known, 'finished request')} that it had told of"
    when = ""
    if isinstance(unshipped_s, int | float):
        when = f" (it was last heard of {unshipped_s:.1f} s after its last shipment)"
    return Finding(
        code="worker_lost",
        severity="invalid",
        text=f"Worker {detail.get('worker', '?')} (process {detail.get('pid', '?')} on "
        f"{detail.get('host', '?')}) was lost; {what} and its requests in flight are missing"
        f"{when}. Its records up to number {detail.get('last_seq', '?')} are here.",
        remedy="See what ended it (memory, a signal, the network) and repeat the run; the levels "
        "that had closed before stand.",
    )


def _fault(event: RunEvent) -> Finding:
    what, text = event.detail.get("what", "fault"), event.detail.get("text", "")
    return Finding(
        code="fault",
        severity="warning",
        text=f"The run reported a fault: {what}. {text}".strip(),
        remedy="Fix what it names and repeat the run.",
        cell=event.cell,
    )


def _damage(name: str, count: int) -> Finding:
    return Finding(
        code="damaged_lines",
        severity="warning",
        text=f"{counted(count, 'line')} of {name} could not be read and "
        f"{'is' if count == 1 else 'are'} missing from every figure.",
        remedy="Check the disk; a crash damages at most the last line.",
    )
