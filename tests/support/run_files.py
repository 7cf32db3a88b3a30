"""A built run in a run directory, as a load would leave it."""

from __future__ import annotations

from pathlib import Path

from harness.records import Scrape
from harness.rundir import GzipJournal, RunDir
from tests.support.run_builder import Run


def write_run(run: Run, results_dir: Path) -> Path:
    """Write the run as a load would; returns its directory."""
    directory = RunDir.create(results_dir, run.manifest.run_id)
    directory.write_manifest(run.manifest)
    append_run(directory.path, run)
    return directory.path


def append_run(path: Path, run: Run) -> None:
    """Write what came of a run, or of a part of it, behind what its directory holds."""
    directory = RunDir(path)
    for journal, lines in (
        (directory.records_journal(), run.records),
        (directory.events_journal(), run.events),
    ):
        for line in lines:
            journal.append(line)
        journal.close()
    for name, pages in run.pages.items():
        scrapes = GzipJournal(directory.scrape_path(name))
        for t_s, text in pages:
            scrapes.append(Scrape(t_s=t_s, took_s=0.004, status=200, text=text))
        scrapes.close()
