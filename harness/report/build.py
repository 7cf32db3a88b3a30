"""``build_report``: from a run directory to summary.json, report.md and report.html."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.errors import RunDirError
from harness.observe.collect import all_series
from harness.report.html import html_report
from harness.report.markdown import markdown_report
from harness.report.summary_json import summary_bytes
from harness.report.theories import run_theories
from harness.rundir import LAST_REPORT, RunDir

_REPORTS = ("summary.json", "report.md", LAST_REPORT)


def build_report(run_path: Path) -> RunSummary:
    """Analyse a run directory, whole or torn, and write its three reports.

    Raises RunDirError when it is no run directory or folders stand where its reports
    belong, JournalError when a report cannot be written.
    """
    run = RunDir.open(run_path)
    _check_places(run)
    manifest = run.manifest()
    series = all_series(run, manifest)
    theories = run_theories(run, manifest)
    summary = analyse(
        manifest, run.records(), run.events(), series, run.damaged, run.absent, theories
    )
    run.write_file("summary.json", summary_bytes(summary))
    run.write_file("report.md", markdown_report(summary).encode())
    run.write_file(LAST_REPORT, html_report(summary).encode())
    return summary


def _check_places(run: RunDir) -> None:
    for name in (*_REPORTS, *(f"{name}.tmp" for name in _REPORTS)):
        if (run.path / name).is_dir():
            raise RunDirError(
                f"{run.path / name} is a folder where a report is written; remove or rename it"
            )
