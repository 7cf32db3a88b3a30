"""The committed JSON is what the code makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.build import FOLDER, differing, main, texts


def test_the_committed_files_are_what_the_code_makes() -> None:
    assert differing(FOLDER, texts()) == [], "run: python -m dashboards.build"


def test_check_names_what_differs_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    capsys.readouterr()
    changed = tmp_path / "run.json"
    changed.write_text("{}")
    (tmp_path / "old.json").write_text("{}")
    assert main(["--check"], tmp_path) == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["old.json", "run.json"]
    assert changed.read_text() == "{}"


def test_building_again_removes_what_no_code_makes(tmp_path: Path) -> None:
    main([], tmp_path)
    (tmp_path / "old.json").write_text("{}")
    main([], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(texts())
