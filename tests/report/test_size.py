"""What a report draws is thinned: its size says nothing about how many requests there were."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.timeline import MAX_POINTS
from harness.report.build import build_report
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run
from tests.support.run_files import write_run


def test_ten_times_the_requests_and_samples_make_no_larger_page(tmp_path: Path) -> None:
    sizes = []
    for wanted, interval_s in ((100, 1.0), (1000, 0.1)):
        # 25 at a time, 2 s each: windows of 10 s and 80 s, ten times as many samples a second
        run = build_run((PAGED,), (32,), (wanted,), interval_s=interval_s)
        summary = build_report(write_run(run, tmp_path / str(wanted)))
        timeline = summary.cells[0].timeline
        assert len(timeline.in_flight) == len(timeline.t_s) == MAX_POINTS
        assert len(timeline.sample_t_s) <= MAX_POINTS
        folder = tmp_path / str(wanted) / run.manifest.run_id
        sizes.append([(folder / f"report.{kind}").stat().st_size for kind in ("html", "md")])
    (html, markdown), (large_html, large_markdown) = sizes
    # at most 400 points of a few characters for each of three gauges and the requests
    assert large_html < html + 4 * MAX_POINTS * 20
    assert large_markdown < 1.1 * markdown
