"""``kvknee report`` on damaged directories: one line, or a finding; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.report.build import build_report
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run
from tests.support.run_files import write_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_run(build_run((PAGED,), (4,), (20,)), tmp_path)


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    change(manifest)
    file.write_text(json.dumps(manifest))


def refused(path: Path | str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run(["report", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(t0_wall_s=1e300), "t0_wall_s 1e+300 is no time of day"),
        (lambda m: m.update(t0_wall_s=-1), "t0_wall_s -1 is no time of day"),
        (lambda m: m.update(schema_version=0), "there is no schema 0; expected 1 to 1"),
        (lambda m: m.update(schema_version=-1), "there is no schema -1"),
        (lambda m: m["backends"][0].update(name="a" * 5000), "a backend has 5000 characters"),
        (lambda m: m["backends"][0].update(name="../../etc/x"), "'../../etc/x' is no name of"),
        (lambda m: m["backends"][0].update(name="a\0b"), "is no name of a backend"),
        (lambda m: m["backends"].append(m["backends"][0]), "two backends have one name"),
    ],
)
def test_a_manifest_that_cannot_be_true_is_one_line(
    path: Path,
    change: Callable[[dict[str, Any]], object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit_manifest(path, change)
    error = refused(path, capsys)
    assert "manifest.json: damaged (" in error and words in error


def test_a_path_of_thousands_of_characters_is_one_short_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = refused("a" * 5000, capsys)
    assert "no run directory (File name too long)" in error
    assert len(error) < 400


@pytest.mark.parametrize("name", ["report.html.tmp", "report.html", "summary.json.tmp"])
def test_a_folder_where_a_report_belongs_is_one_line(
    path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (path / name).mkdir()
    assert f"{name} is a folder where a report is written" in refused(path, capsys)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "is missing: "),
        (lambda file: file.write_bytes(b""), "is empty: "),
        (folder, "is no file: "),
        (loop, "cannot be read (Too many levels of symbolic links): "),
    ],
)
@pytest.mark.parametrize("name", ["records.jsonl", "events.jsonl"])
def test_a_journal_that_gives_nothing_is_named(
    path: Path, name: str, damage: Callable[[Path], object], words: str
) -> None:
    damage(path / name)
    summary = build_report(path)
    found = next(f for f in summary.findings if f.code == "file_missing")
    assert found.severity == "invalid"
    assert found.text.startswith(f"{name} {words}")
    assert all(cell.unjudged is not None for cell in summary.cells)


def test_arrays_of_unequal_length_are_counted_as_damage(path: Path) -> None:
    file = path / "records.jsonl"
    lines = file.read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), "token_n": [1]})
    file.write_text("\n".join(lines) + "\n")
    summary = build_report(path)
    found = next(f for f in summary.findings if f.code == "damaged_records")
    assert found.text.startswith("1 record of records.jsonl holds impossible figures")
    assert summary.cells[0].counts.recorded == len(lines) - 1


def test_scrapes_that_are_a_folder_are_a_finding(path: Path) -> None:
    folder(path / "scrapes" / "paged.jsonl.gz")
    texts = [f.text for f in build_report(path).findings if f.code == "file_missing"]
    assert texts == ["paged.jsonl.gz is no file: what it held is absent."]
