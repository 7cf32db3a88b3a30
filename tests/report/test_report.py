from __future__ import annotations

import gzip
import html.parser
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.errors import RunDirError
from harness.records import RequestRecord, RunEvent
from harness.report.build import build_report
from harness.report.terminal import print_summary
from harness.workload import Slo
from tests.support.fake_records import cell_of, failure
from tests.support.fake_server import PAGED, STATIC, FakeServer, paged_info
from tests.support.run_builder import Run, build_run, replace_manifest
from tests.support.run_files import write_run

EVIL = "<script>alert('x')</script> & | `code` [bold]x[/bold]"
#: every benchmark scalar that tools for vLLM's results look for
BENCHMARK = {
    f"{kind}_{name}_ms"
    for kind in ("mean", "median", "std", "p99")
    for name in ("ttft", "tpot", "itl", "e2el")
} | {
    "completed", "failed", "duration", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
}  # fmt: skip


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(build_run(), tmp_path_factory.mktemp("results"))
    build_report(path)
    return path


def built(run: Run, folder: Path) -> Path:
    path = write_run(run, folder)
    build_report(path)
    return path


def read(path: Path) -> tuple[dict[str, Any], str, str]:
    """(summary.json, report.md, report.html)."""
    return (
        json.loads((path / "summary.json").read_bytes()),
        (path / "report.md").read_text(),
        (path / "report.html").read_text(),
    )


def terminal(path: Path, width: int = 80) -> str:
    out = io.StringIO()
    print_summary(build_report(path), Console(file=out, width=width))
    return out.getvalue()


def small(level: int = 4, wanted: int = 20) -> Run:
    return build_run((PAGED,), (level,), (wanted,))


def test_the_verdict_comes_first_everywhere(healthy: Path) -> None:
    line = (
        "paged: holds 16 at 512+128 tokens (knee between 16 and 32), "
        "KV-bound, predicted 25; meets TTFT p95 500 ms and TPOT p95 50 ms up to 16"
    )
    summary, markdown, page = read(healthy)
    assert summary["verdicts"][0]["text"] == line
    assert f"**{line}**" in markdown.split("##")[0]
    assert line.partition(": ")[2] in page.split("<h2>")[0]
    flat = " ".join(terminal(healthy).split())
    assert flat.startswith(line)


def test_headline_has_p50_p95_and_n_and_p99_only_where_earned(healthy: Path) -> None:
    summary, markdown, page = read(healthy)
    for cell in summary["cells"]:
        assert cell["latency"]["ttft_s"]["n"] >= (100 if cell["level"] > 1 else 20)
        # 100 to 144 requests are too few for the p99 of TTFT, thousands of gaps are not
        assert cell["p99_ttft_ms"] is None
        assert cell["p99_tpot_ms"] is None
        assert cell["p99_itl_ms"] is not None
    assert "TTFT p99" not in markdown + page
    assert "ITL p99" in markdown and "ITL p99" in page
    # n = 20 at level 1: p95 carries the mark and its explanation
    assert re.search(r"\| 28\.6\\\* \|", markdown)
    assert "28.6*" in terminal(healthy)
    assert "fewer samples than the percentile needs" in terminal(healthy)


def test_summary_has_the_names_that_vllms_benchmark_writes(healthy: Path) -> None:
    summary, _, _ = read(healthy)
    cell = summary["cells"][2]
    assert cell["level"] == 16
    assert set(cell) >= BENCHMARK
    found = cell["latency"]["ttft_s"]
    assert cell["median_ttft_ms"] == pytest.approx(found["p50"] * 1000)
    assert cell["mean_ttft_ms"] == pytest.approx(found["mean"] * 1000)
    assert cell["completed"] == cell["counts"]["ok"]
    assert cell["total_output_tokens"] == 128 * cell["completed"]
    assert cell["total_input_tokens"] == 512 * cell["completed"]
    total = cell["output_throughput"] + cell["throughput"]["prompt_tokens_per_s"]
    assert cell["total_token_throughput"] == pytest.approx(total)


def test_a_rebuild_gives_the_same_bytes(healthy: Path) -> None:
    before = [(healthy / name).read_bytes() for name in ("summary.json", "report.md")]
    page = (healthy / "report.html").read_bytes()
    build_report(healthy)
    assert [(healthy / n).read_bytes() for n in ("summary.json", "report.md")] == before
    assert (healthy / "report.html").read_bytes() == page


def test_memory_and_the_knee_come_from_the_scraped_text(healthy: Path) -> None:
    summary, _, _ = read(healthy)
    paged = {c["level"]: c for c in summary["cells"] if c["backend"] == "paged"}
    # 25 requests x 5 blocks = 125 of 128 blocks of 131,072 B
    assert paged[32]["memory"]["used_bytes"]["maximum"] == 125 * 131_072
    assert paged[32]["admission"]["state"] == "kv_memory"
    assert paged[16]["admission"]["state"] == "free"
    assert paged[16]["memory"]["pool_bytes_per_token"] == 1024
    verdict = summary["verdicts"][1]
    assert (verdict["memory"]["last_good"], verdict["memory"]["first_bad"]) == (4, 16)
    assert verdict["prediction_holds"] is True
    assert summary["findings"] == []


class Page(html.parser.HTMLParser):
    """Tags, ids and references of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action"):
                self.loads.append(value or "")


def test_the_page_is_self_contained_and_has_no_double_ids(healthy: Path) -> None:
    text = read(healthy)[2]
    page = Page(text)
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert all(ref.startswith("#") for ref in page.loads)
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    # throughput, TTFT, TPOT, KV of two backends, two timelines
    assert page.tags.count("svg") == 7
    assert text.count('role="img" aria-label=') == 7
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_figures_keep_text_as_text_in_the_pages_colours(healthy: Path) -> None:
    text = read(healthy)[2]
    for words in ("concurrent requests (log scale)", "output tokens / s", "predicted 25",
                  "pool 16.0 MiB", "SLO 500 ms", "seconds since the level began"):  # fmt: skip
        assert words in text
    assert "var(--s0)" in text and "var(--s1)" in text
    assert "#0102" not in text


def test_no_absolute_path_in_any_report(tmp_path: Path) -> None:
    run = small()
    info = paged_info(model="/srv/secret-place/models/tiny")
    run.manifest = replace_manifest(
        run.manifest,
        backends=(info,),
        fingerprint={"model": "/srv/secret-place/models/tiny"},
        environment={"python": "/opt/secret-place/bin/python"},
    )
    path = built(run, tmp_path / "results")
    everything = "".join(map(str, read(path))) + terminal(path)
    assert str(tmp_path) not in everything
    assert "secret-place" not in everything


def test_what_a_server_sent_is_escaped_everywhere(tmp_path: Path) -> None:
    run = small(wanted=40)
    info = paged_info(name="pag<b>ed", model=EVIL, engine_version=EVIL)
    key = cell_of(FakeServer(info, 25), 4)

    def moved(old: RequestRecord) -> RequestRecord:
        facts = {n: getattr(old, n) for n in old.__struct_fields__}
        return RequestRecord(**{**facts, "cell": key})

    run.records = [moved(r) for r in run.records]
    sent = run.records[-20].t_sent_s or 0.0
    run.records.append(
        failure(key, 9999, user=0, error=EVIL, http_status=500, outcome="http_error",
                t_intended_s=sent, t_sent_s=sent, t_end_s=sent + 0.01)
    )  # fmt: skip
    run.events = [
        RunEvent(t_s=e.t_s, kind=e.kind, cell=key if e.cell else None, detail=e.detail)
        for e in run.events
    ]
    run.pages = {}
    run.manifest = replace_manifest(run.manifest, backends=(info,), fingerprint={EVIL: EVIL})
    path = built(run, tmp_path)
    _, markdown, page = read(path)
    assert "script" not in Page(page).tags
    assert "<b>ed" not in page and "alert(&#39;x&#39;)" in page
    # as text everywhere, code spans included: not every reader of Markdown is a strict one
    assert "<script" not in markdown and "<b>" not in markdown
    assert "&lt;script&gt;alert" in markdown
    assert "<script>" in terminal(path, 200) and "[bold]" in terminal(path, 200)


def test_an_interrupted_run(tmp_path: Path) -> None:
    run = build_run((PAGED, STATIC), (4, 16), (100, 100))
    cut = next(e.t_s for e in run.events if e.kind == "window_close" and e.cell.level == 16) - 3  # type: ignore[union-attr]
    run.records = [r for r in run.records if r.t_end_s < cut]
    run.events = [e for e in run.events if e.t_s < cut]
    run.events.append(RunEvent(t_s=cut, kind="interrupted"))
    run.manifest = replace_manifest(run.manifest, status="interrupted", t_end_s=cut)
    summary, markdown, page = read(built(run, tmp_path))
    assert summary["status"] == "interrupted"
    assert {f["code"] for f in summary["findings"]} > {"too_few_requests"}
    assert "--max-level-seconds" not in markdown + page
    assert summary["findings"][0]["code"] == "interrupted"
    assert "not judged" in markdown
    assert "interrupted" in page


def test_a_torn_run_directory(tmp_path: Path) -> None:
    path = write_run(small(16, 200), tmp_path)
    records = path / "records.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    lines[60] = b'{"worker": damaged\n'
    records.write_bytes(b"".join(lines)[:-200])
    scrapes = path / "scrapes" / "paged.jsonl.gz"
    scrapes.write_bytes(scrapes.read_bytes()[:-30])
    build_report(path)
    summary, _, _ = read(path)
    # the lost record is missing from the count and from the load in flight, and that is said
    assert {f["code"] for f in summary["findings"]} == {
        "damaged_lines",
        "too_few_requests",
        "window_not_full",
    }
    assert summary["cells"][0]["counts"]["sent"] == 199
    assert summary["findings"][0]["text"] == (
        "1 line of records.jsonl could not be read and is missing from every figure."
    )
    # one lost record takes 1.5 s of one of 16 users away: the level is still what it says
    assert {f["severity"] for f in summary["findings"]} == {"warning"}


def test_an_empty_run_directory(tmp_path: Path) -> None:
    run = build_run((PAGED,), (4,), (20,))
    run.records, run.events, run.pages = [], [], {}
    run.manifest = replace_manifest(run.manifest, status="running", t_end_s=None)
    path = built(run, tmp_path)
    for name in ("records.jsonl", "events.jsonl"):
        (path / name).unlink()
    build_report(path)
    summary, markdown, page = read(path)
    assert summary["cells"] == [] and summary["verdicts"] == []
    assert "No level was measured." in markdown
    assert "No level was measured." in page
    assert "No level was measured." in terminal(path)


def test_failures_only(tmp_path: Path) -> None:
    run = small()
    key = cell_of(PAGED, 4)
    run.records = [
        failure(key, i, user=i % 4, t_intended_s=1001 + i * 0.1, t_sent_s=None,
                t_end_s=1001.05 + i * 0.1, outcome="connect", error="connection refused")
        for i in range(200)
    ]  # fmt: skip
    path = built(run, tmp_path)
    summary, markdown, _ = read(path)
    cell = summary["cells"][0]
    assert cell["median_ttft_ms"] is None
    assert cell["latency"]["ttft_adjusted_s"]["p95"] is None
    assert cell["counts"]["by_class"] == [["connect", cell["counts"]["failed"]]]
    assert "connection refused" in markdown
    assert "| ∞ |" in markdown


def test_no_slo_and_one_level(tmp_path: Path) -> None:
    run = small()
    run.manifest = replace_manifest(run.manifest, slo=Slo())
    path = built(run, tmp_path)
    summary, _, page = read(path)
    assert summary["verdicts"][0]["text"] == (
        "paged: holds 4, the highest level judged, at 512+128 tokens (no knee reached), "
        "predicted 25"
    )
    assert "Goodput" not in page


def test_d85_the_page_says_that_a_preallocated_pool_is_not_informative(healthy: Path) -> None:
    _, markdown, page = read(healthy)
    assert "pool gives 1,024 B per token" in markdown
    for text in (markdown, page):
        assert "pre-allocated, not informative" in text


def test_the_terminal_fits_80_columns_without_colour(healthy: Path) -> None:
    text = terminal(healthy)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "No findings." in text


def test_the_terminal_fits_80_columns_with_failures(tmp_path: Path) -> None:
    run = small()
    key, at = cell_of(PAGED, 4), run.records[-20].t_sent_s or 0.0
    run.records.append(failure(key, 9999, user=0, t_intended_s=at, t_sent_s=at, t_end_s=at + 0.01))
    text = terminal(write_run(run, tmp_path))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "failed" in text and "nothing" in text and "…" not in text


def test_a_folder_that_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no run directory"):
        build_report(tmp_path)


def test_the_scrapes_are_plain_gzip(healthy: Path) -> None:
    text = gzip.decompress((healthy / "scrapes" / "paged.jsonl.gz").read_bytes())
    assert text.count(b"\n") > 50
