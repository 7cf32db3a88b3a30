"""How it was measured, in words: what was really seen, not what was asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.observe.stored import StoredPrometheus, StoredSeries, write_stored
from harness.report.build import build_report
from harness.report.method import method_lines
from harness.rundir import RunDir
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, build_run, replace_manifest
from tests.support.run_files import write_run

_SAMPLE = re.compile(r"^([a-z_:]+)\{(.*)\} (\S+)$", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def stored(run: Run, every_s: int) -> StoredPrometheus:
    """What a Prometheus server with its own interval would have of the pages, one a second."""
    manifest = run.manifest
    pages = run.pages["paged"][::every_s]
    walls = tuple(manifest.t0_wall_s + t_s - manifest.t0_s for t_s, _ in pages)
    columns: dict[tuple[str, str], list[float]] = {}
    for _, text in pages:
        for name, labels, value in _SAMPLE.findall(text):
            columns.setdefault((name, labels), []).append(float(value))
    series = tuple(
        StoredSeries(name=name, labels=dict(_LABEL.findall(labels)), t_wall_s=walls, v=tuple(v))
        for (name, labels), v in columns.items()
    )
    return StoredPrometheus(
        url="http://127.0.0.1:9090",
        version="2.42.0",
        start_wall_s=walls[0],
        end_wall_s=walls[-1],
        clock_skew_s=0.0,
        targets={"paged": series},
        faults={},
    )


def memory_line(summary: RunSummary) -> str:
    return next(line for line in method_lines(summary) if line.startswith("Memory of paged"))


def test_a_prometheus_servers_own_interval_is_stated(tmp_path: Path) -> None:
    # a window of at least 30 s, sampled every 5 s
    run = build_run((PAGED,), (16,), (300,))
    run.manifest = replace_manifest(run.manifest, prometheus_url="http://127.0.0.1:9090")
    path = write_run(run, tmp_path)
    write_stored(RunDir.open(path), stored(run, 5))
    summary = build_report(path)
    memory = summary.cells[0].memory
    assert memory is not None
    window_s = summary.cells[0].window.length_s or 0.0
    assert window_s // 5 <= memory.samples <= window_s // 5 + 1
    assert memory_line(summary).startswith(
        f"Memory of paged: from a Prometheus server, {memory.samples} samples inside the "
        "windows, one every 5.00 s (median gap)."
    )
    assert summary.findings == ()
    assert "one every 5.00 s" in (path / "report.md").read_text()


def test_the_embedded_scrapers_interval_is_stated(tmp_path: Path) -> None:
    summary = build_report(write_run(build_run((PAGED,), (4,), (20,)), tmp_path))
    assert "from the embedded scraper" in memory_line(summary)
    assert "one every 1.00 s (median gap)" in memory_line(summary)


def test_the_clock_line_says_at_least_only_of_a_part() -> None:
    run = build_run((PAGED,), (4,), (20,))
    summary = analyse(run.manifest, run.records, run.events, run.series)

    def line(share: float) -> str:
        cells = tuple(
            replace(c, latency=replace(c.latency, kernel_clock_share=share)) for c in summary.cells
        )
        lines = method_lines(replace(summary, cells=cells))
        return next(text for text in lines if text.startswith("Clock"))

    assert line(1.0) == "Clock: kernel receive time stamps on every read of every request."
    assert "at least 98.0 % of each level's requests" in line(0.98)
    assert "no request had kernel receive time stamps" in line(0.0)
