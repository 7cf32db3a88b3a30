"""``build_report``: from a run directory to summary.json, report.md and report.html."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.observe.collect import all_series
from harness.report.html import html_report
from harness.report.markdown import markdown_report
from harness.report.summary_json import summary_bytes
from harness.rundir import RunDir


def build_report(run_path: Path) -> RunSummary:
    """Analyse a run directory, whole or torn, and write its three reports.

    Raises RunDirError when it is no run directory, JournalError when a report cannot be
    written.
    """
    run = RunDir.open(run_path)
    manifest = run.manifest()
    series = all_series(run, manifest)
    summary = analyse(manifest, run.records(), run.events(), series, run.damaged)
    run.write_file("summary.json", summary_bytes(summary))
    run.write_file("report.md", markdown_report(summary).encode())
    run.write_file("report.html", html_report(summary).encode())
    return summary
