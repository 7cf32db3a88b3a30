"""``kvknee compare``: its table, Markdown, JSON and page, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from harness.cli import run
from tests.support.fake_server import PAGED, STATIC
from tests.support.run_builder import build_run, replace_manifest
from tests.support.run_files import write_run
from tests.support.stored_runs import DYNAMIC, PAGED_STATIC, stored_run

SLOWER = replace(PAGED, prefill_s=0.03, tpot_s=0.006)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    before = build_run((PAGED, STATIC), (4, 16), (100, 100), run_id="before")
    after = build_run((SLOWER, STATIC), (4, 16), (100, 100), run_id="after")
    return write_run(before, folder), write_run(after, folder)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run(["compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run(["compare", *map(str, arguments)]) == 2
    found = capsys.readouterr()
    assert found.err.count("\n") == 1
    return found.err


def test_the_table(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *runs)
    assert text.startswith("A: before\nB: after\nB against A over 4 levels: ")
    assert "paged (paged), 512+128 tokens" in text
    assert "contiguous (static), 512+128 tokens" in text
    assert re.search(r"TTFT p50 ms +26\.8 +33\.5 +\+25\.0 %", text)
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_with_itself(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, runs[0], runs[0])
    assert "better" not in text.splitlines()[2]
    assert "worse" not in text.splitlines()[2]
    assert "both are the same run: every difference is 0" in text


def test_a_stored_run_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored_run(PAGED_STATIC, tmp_path)
    found = json.loads(shown(capsys, path, path, "--json"))
    assert len(found["pairs"]) == 6
    for pair in found["pairs"]:
        for change in pair["changes"]:
            assert change["a"] == change["b"]
            assert change["outcome"] in ("same", "unsure")


def test_markdown(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *runs, "--format", "markdown")
    assert text.startswith("# kvknee: after against before")
    assert "| level | figure | A | B | change | 95 % interval | B is |" in text
    assert text.endswith("\n")


def test_json_has_stable_names(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(capsys, *runs, "--json"))
    assert found["schema_version"] == 1
    assert (found["name_a"], found["name_b"], found["forced"]) == ("before", "after", False)
    change = found["pairs"][0]["changes"][0]
    assert change["metric"]["name"] == "ttft_p50_s"
    assert change["outcome"] == "worse"
    assert change["change"]["low"] < change["change"]["value"] < change["change"]["high"]


def test_the_page_stands_alone(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert f"page: {page}" in shown(capsys, *runs, "--html", page).replace("\n", "")
    text = page.read_text()
    assert text.count("<svg") == 6
    assert "http://" not in text and "https://" not in text
    assert "TTFT p95: B against A (less is better)" in text
    assert "<script" not in text


def test_what_servers_sent_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = build_run((PAGED,), (4,), (100,), run_id="one")
    evil = "<img src=x>\x1b[31m"
    info = msgspec.structs.replace(one.manifest.backends[0], engine_version=evil)
    facts = {**one.manifest.fingerprint, "paged.engine_version": evil}
    other = replace(
        one,
        manifest=replace_manifest(
            one.manifest, backends=(info,), fingerprint=facts, run_id="other"
        ),
    )
    paths = write_run(one, tmp_path), write_run(other, tmp_path)
    page = tmp_path / "page.html"
    text = shown(capsys, *paths, "--html", page)
    assert "\x1b" not in text
    assert "differs: paged.engine_version" in text
    assert "<img" not in page.read_text()
    assert "<img" not in shown(capsys, *paths, "--format", "markdown")


def test_another_workload_is_one_line(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(build_run((PAGED,), (4, 8), (100, 100), run_id="other"), tmp_path)
    assert "workload.levels (4, 16 against 4, 8)" in refused(capsys, runs[0], other)
    text = shown(capsys, runs[0], other, "--force")
    assert "Compared by --force" in text
    assert "NOT COMPARABLE: workload.levels, A 4, 16, B 4, 8" in text
    assert "only in A:" in text


def test_two_stored_runs_of_other_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [stored_run(name, tmp_path) for name in (PAGED_STATIC, DYNAMIC)]
    assert "no level in common" in refused(capsys, *paths, "--force")


def test_a_folder_that_is_no_run(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no run directory" in refused(capsys, runs[0], tmp_path)
    assert "no run directory" in refused(capsys, tmp_path / "absent", runs[0])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ("missing", "records.jsonl is missing, so there is nothing to compare"),
        ("empty", "records.jsonl is empty, so there is nothing to compare"),
        ("damaged", "1 damaged line in records.jsonl"),
        ("running", "the run is not at its end"),
    ],
)
def test_a_torn_run_is_one_line(
    runs: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: str,
    words: str,
) -> None:
    source = build_run((PAGED, STATIC), (4, 16), (100, 100), run_id="torn")
    if harm == "running":
        source = replace(source, manifest=replace_manifest(source.manifest, status="running"))
    torn = write_run(source, tmp_path)
    records = torn / "records.jsonl"
    if harm == "missing":
        records.unlink()
    elif harm == "empty":
        records.write_bytes(b"")
    elif harm == "damaged":
        lines = records.read_bytes().splitlines(keepends=True)
        records.write_bytes(b"".join([*lines[:5], b"{broken\n", *lines[5:]]))
    assert words in refused(capsys, runs[0], torn)
    if harm in ("damaged", "running"):
        assert "B against A" in shown(capsys, runs[0], torn, "--force")


def test_a_page_that_cannot_be_written(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--html" in refused(capsys, *runs, "--html", tmp_path)


def test_nothing_is_written_beside_the_runs(runs: tuple[Path, Path]) -> None:
    assert not (runs[0] / "summary.json").exists()
