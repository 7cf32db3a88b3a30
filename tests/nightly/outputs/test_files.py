"""The files as such: all there, each whole or not at all, the same every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import JournalError
from harness.nightly.metrics import METRICS
from harness.nightly.night_types import Night
from harness.nightly.outputs import FILES, write
from harness.nightly.outputs.words import NAMES
from tests.nightly.outputs.nights import ASKED, NIGHTS, first_nights, hostile_night, night

#: as they stand in a hostile text, in any format
RAW = ("<script", "\x1b", "\u202e", "\ud800")


@pytest.mark.parametrize("name", NIGHTS)
def test_every_night_is_written(name: str, tmp_path: Path) -> None:
    paths = write(NIGHTS[name](), tmp_path / "new" / "folder")
    assert [path.name for path in paths] == list(FILES)
    assert sorted((tmp_path / "new" / "folder").iterdir()) == sorted(paths), "no draft is left"
    assert all(path.read_bytes().endswith(b"\n") for path in paths)


def test_every_verdict_occurs_in_the_tests() -> None:
    names = [item.verdict.name for item in night().judged]
    assert names == list(ASKED)


def test_every_metric_has_a_name() -> None:
    assert NAMES.keys() == METRICS.keys()


def test_a_night_is_written_the_same_twice(tmp_path: Path) -> None:
    made = first_nights()
    first = [path.read_bytes() for path in write(made, tmp_path)]
    assert [path.read_bytes() for path in write(made, tmp_path)] == first


def test_what_is_in_the_way_stays(tmp_path: Path) -> None:
    (tmp_path / "night.md").mkdir()
    with pytest.raises(JournalError, match=r"night\.md: "):
        write(first_nights(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "night.json",
        "night.md",
        "night.xml",
    ]


def test_an_old_file_stays_whole_where_a_new_one_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(first_nights(), tmp_path)
    old = (tmp_path / "night.md").read_bytes()

    def fails(made: Night) -> bytes:
        raise RuntimeError(made.suite)

    monkeypatch.setitem(FILES, "night.md", fails)
    with pytest.raises(RuntimeError, match="gpu"):
        write(night(), tmp_path)
    assert (tmp_path / "night.md").read_bytes() == old


def test_no_hostile_text_gets_through(tmp_path: Path) -> None:
    for path in write(hostile_night(), tmp_path):
        # night.json and night.om are for programs: <script> is no markup there
        marks = RAW[1:] if path.suffix in (".json", ".om") else RAW
        text = path.read_text(encoding="utf-8")
        assert [mark for mark in marks if mark in text] == [], path.name
        assert all(char.isprintable() or char == "\n" for char in text), path.name


def test_no_output_shows_a_folder_of_a_model(tmp_path: Path) -> None:
    made = night([ASKED["ok"]], exit_code=0)
    items = tuple(replace(item, model="/secret/folder/models/tiny") for item in made.judged)
    for path in write(night(judged=items, exit_code=0), tmp_path):
        assert "/secret/folder" not in path.read_text(), path.name
