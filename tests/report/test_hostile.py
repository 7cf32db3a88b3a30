"""Control characters that a server sends reach no report."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from harness.report.build import build_report
from harness.report.terminal import print_summary
from tests.support.fake_records import cell_of, failure
from tests.support.fake_server import PAGED, FakeServer, paged_info
from tests.support.run_builder import build_run, replace_manifest
from tests.support.run_files import write_run

ESCAPES = "\x1b[31mred\x1b]0;title\x07 \x00\x08\x9b2J\u202egnp.exe"


def controls(text: str) -> set[str]:
    return {char for char in text if not char.isprintable() and char != "\n"}


def test_no_control_character_of_a_server_is_written(tmp_path: Path) -> None:
    info = paged_info(model=ESCAPES, engine_version=ESCAPES)
    run = build_run((FakeServer(info, seats=25),), (4,), (40,))
    key, at = cell_of(PAGED, 4), run.records[-20].t_sent_s or 0.0
    run.records.append(
        failure(key, 9999, user=0, error=ESCAPES, http_status=500, outcome="http_error",
                t_intended_s=at, t_sent_s=at, t_end_s=at + 0.01)
    )  # fmt: skip
    run.manifest = replace_manifest(
        run.manifest, fingerprint={ESCAPES: ESCAPES}, environment={"python": ESCAPES}
    )
    path = write_run(run, tmp_path)
    summary = build_report(path)
    markdown, page = ((path / name).read_text() for name in ("report.md", "report.html"))
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=100))
    for text in (markdown, page, out.getvalue()):
        assert controls(text) == set()
        assert "gnp.exe" in text
    # for programs the words stay as they were, escaped as JSON is
    raw = (path / "summary.json").read_text()
    assert raw.isascii() and controls(raw) == set() and "\x7f" not in raw
    assert "\\u009b2J\\u202egnp.exe" in raw
    assert json.loads(raw)["verdicts"][0]["backend"]["engine_version"] == ESCAPES
