"""From the run directory of a repeat to figures and setups under the suite's own names."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.summary_types import RunSummary
from harness.nightly.figures import StoredFigure, run_figures, unsound
from harness.nightly.job.plan import Repeat, cell_name, source
from harness.nightly.metrics import METRICS
from harness.nightly.setup import differing, setup_facts
from harness.records import Loop, Scalar
from harness.report.build import build_report

Setups = dict[str, dict[str, Scalar]]


@dataclass(frozen=True)
class Place:
    """What a cell of the history is a cell of; ``level`` is None for a whole run's figure."""

    run: str
    backend: str
    model: str
    level: int | None


@dataclass(frozen=True)
class Harvest:
    """What one repeat gave; ``failed`` are its cells that do not count, each with the reason."""

    figures: tuple[StoredFigure, ...]
    setups: Setups
    places: dict[str, Place]
    failed: tuple[str, ...]
    #: of the machine, in words
    machine: str


def harvest(folder: Path, repeat: Repeat) -> Harvest:
    """Read a run directory; raises KvkneeError for one that cannot be read."""
    return of_summary(build_report(folder), repeat)


def of_summary(summary: RunSummary, repeat: Repeat) -> Harvest:
    """Its figures, each with the run's name, the repeat's number and the backend's history."""
    run = repeat.run
    asked: dict[str, Scalar] = {"kv_budget_bytes": run.kv_budget_bytes}
    figures = tuple(
        replace(
            item,
            backend=source(run.name, item.backend),
            cell=cell_name(run.name, item.cell),
            repeat=repeat.number,
        )
        for item in run_figures(summary)
    )
    names = [info.name for info in summary.manifest.backends]
    facts = summary.manifest.fingerprint
    why = [(cell.cell.label, unsound(cell)) for cell in summary.cells]
    missing = [f"{item.cell.label}: {item.reason}" for item in summary.skipped]
    return Harvest(
        figures=figures,
        setups={
            source(run.name, name): setup_facts(summary.manifest, name, asked) for name in names
        },
        places=_places(summary, figures, repeat),
        failed=(*(f"{label}: {text}" for label, text in why if text is not None), *missing),
        machine=_machine(facts),
    )


def _places(
    summary: RunSummary, figures: Sequence[StoredFigure], repeat: Repeat
) -> dict[str, Place]:
    run = repeat.run
    backends = {source(run.name, name): name for name in run.backends}
    found = {
        item.cell: Place(run.name, backends.get(item.backend, item.backend), run.model, None)
        for item in figures
    }
    for cell in summary.cells:
        loop: Loop = "closed" if cell.open_loop is None else "open"
        name = cell_name(run.name, cell.cell.label_in(loop))
        if name in found:
            found[name] = replace(found[name], level=int(cell.cell.level))
    return found


def _machine(facts: Mapping[str, Scalar]) -> str:
    parts = [facts.get("hardware.gpus"), facts.get("hardware.cpu")]
    cores = facts.get("hardware.cores")
    words = [str(part) for part in parts if part is not None]
    return ", ".join([*words, *([f"{cores} cores"] if cores is not None else [])])


def changed_setup(known: Mapping[str, Mapping[str, Scalar]], new: Setups) -> str | None:
    """What of a backend is another than in an earlier repeat of the night; None when nothing."""
    for name, facts in new.items():
        if name in known:
            found = differing(known[name], facts)
            if found:
                return f"{name} is not what it was earlier tonight: {', '.join(found)}"
    return None


def once_a_run(figures: Sequence[StoredFigure]) -> tuple[StoredFigure, ...]:
    """The night's figures, those of a whole run put together from its repeats.

    A memory knee is a level, so a mean would be one that nobody asked for: it is the median of
    the repeats, the lower of the middle two where they are even in number (what the server held
    in at least half of them). Where fewer than half of the repeats tell, it is absent.
    """
    single: dict[tuple[str, str], list[StoredFigure]] = defaultdict(list)
    found = []
    for item in figures:
        if METRICS[item.metric].once_a_run:
            single[item.cell, item.metric].append(item)
        else:
            found.append(item)
    for items in single.values():
        values = [item.value for item in items if item.value is not None]
        known = 2 * len(values) >= len(items) and values
        value = statistics.median_low(values) if known else None
        found.append(replace(items[0], repeat=0, value=value))
    return tuple(found)
