from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.cli import run as kvknee
from harness.nightly import export
from harness.nightly.gate_types import GateLimits
from harness.nightly.history import History
from harness.nightly.history_schema import MIGRATIONS
from harness.nightly.trend import trends
from tests.nightly.test_history import CELL, METRIC, SETUP, store

SUITE = Path(__file__).parents[2] / "scenarios" / "nightly.toml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def call(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = kvknee(["history", "--file", str(path), *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def seeded(path: Path, nights: int = 12) -> None:
    """Quiet nights that alternate between 100 and 101 ms."""
    with History.open(path) as history:
        for i in range(nights):
            store(history, i, 0.1 if i % 2 else 0.101)


def test_runs_are_listed_with_alarms_and_marks(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded(path)
    with History.open(path) as history:
        assert store(history, 12, 0.13) == "regressed"
    said = "n00 is marked bad\n"
    assert call(path, capsys, "bad", "n00", "--reason", "warm")[:2] == (0, said)
    lines = call(path, capsys, "list")[1].splitlines()
    assert lines[0].split() == ["night", "suite", "run", "alarms", "gated", "mark"]
    first, last = lines[1].split(maxsplit=6), lines[-1].split(maxsplit=6)
    assert first[4:] == ["n00", "0", "1 no comparable baseline  bad: warm"]
    assert last[4:] == ["n12", "1", "1 regressed"]
    assert len(call(path, capsys, "list", "--last", "2")[1].splitlines()) == 3
    assert call(path, capsys, "unmark", "n00")[:2] == (0, "n00 has no mark\n")
    assert "bad" not in call(path, capsys, "list")[1]


def test_a_run_is_shown_with_units(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeded(path)
    with History.open(path) as history:
        store(history, 12, 0.2)
        store(history, 13, None)
    shown = call(path, capsys, "show", "n12")[1].splitlines()
    assert shown[0].split()[:2] == ["n12", "1970-01-01"]
    assert "paged: backend.engine_version=0.32, hardware.gpus=n150" in shown
    # repeats of 199, 200 and 201 ms
    row = next(line for line in shown if METRIC in line)
    expected = (
        "200 ms  199 ms   201 ms   3 of 3      600+  regressed (gated, kept out of baselines)"
    )
    assert row.split(METRIC)[1].strip() == expected
    absent = call(path, capsys, "show", "n13")[1]
    assert "-       -        -   0 of 3      600+  insufficient samples (gated)" in absent


def test_what_can_be_seen_is_told_from_the_own_history(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded(path)
    # nights of 100 and 101 ms: spread 0.52 %, so the floor of 5 % decides; z(75 %) is 0.67:
    # log(1.05) + 0.67 x 0.52 % x sqrt(1 + 1/12) = 5.24 %, a change of 5.4 %
    line = call(path, capsys, "sight")[1].splitlines()[1]
    assert line.split() == [*CELL.split(), METRIC, "yes", "12", "0.5", "%", "5.4", "%", "-"]
    told = call(path, capsys, "trend", METRIC)[1]
    assert (
        "smallest regression seen the same night with probability 75 %: 5.4 % (12 nights)" in told
    )
    assert "no clear step" in told


def test_a_change_is_dated_though_its_nights_are_kept_out(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded(path)
    with History.open(path) as history:
        assert [store(history, i, 0.13) for i in (12, 13, 14)] == ["regressed"] * 3
        found = trends(history)[0]
    # 12 nights of 100.5 ms on average, then 130 ms: 29.4 % more
    assert found.since is not None and found.since.night == "n12"
    assert found.since.change == pytest.approx(0.13 / 0.1005 - 1, abs=1e-3)
    # the gate compares with the twelve good ones
    assert (len(found.series.baseline), len(found.nights)) == (12, 15)
    told = call(path, capsys, "trend", METRIC, "--cell", CELL, "--nights", "4")[1]
    assert "changed since n12: +29.4 % (p 0.00" in told
    assert told.count("regressed") == 3 and "n11" in told and "n10" not in told
    # once it is accepted it is no change any more
    call(path, capsys, "baseline", "n12", "--reason", "a safer sampler")
    told = call(path, capsys, "trend", METRIC)[1]
    assert "no clear step" in told and "baseline" in told
    assert "3 comparable nights: too few to say what the gate can see" in told


def test_another_setup_is_no_part_of_a_trend(path: Path) -> None:
    seeded(path, 6)
    with History.open(path) as history:
        store(history, 6, 0.2, {**SETUP, "hardware.gpus": "p150"})
        found = trends(history, "s", GateLimits())[0]
        assert [item.reading.night for item in found.nights] == ["n06"]
        # a bad newest run does not say which setup counts
        history.mark("n06", "bad", "borrowed machine")
        assert len(trends(history)[0].nights) == 6


def test_rows_come_out_whole(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with History.open(path) as history:
        store(history, 0, 0.1)
        store(history, 1, None)
    text = call(path, capsys, "export")[1]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == [name for name, _ in export.COLUMNS]
    assert len(rows) == 2 * 3
    # absent is an empty field
    assert (rows[0]["value"], rows[3]["value"]) == ("0.0995", "")
    file = tmp_path / "nights.csv"
    assert call(path, capsys, "export", "--output", str(file))[0] == 0
    assert file.read_text() == text


@pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow (kvknee[parquet]) is not installed"
)
def test_parquet_holds_the_same_rows(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parquet = importlib.import_module("pyarrow.parquet")
    with History.open(path) as history:
        store(history, 0, 0.1)
        store(history, 1, None)
    file = tmp_path / "nights.parquet"
    assert call(path, capsys, "export", "--format", "parquet", "--output", str(file))[0] == 0
    found = parquet.read_table(str(file))
    assert found.column_names == [name for name, _ in export.COLUMNS]
    assert [str(kind) for kind in found.schema.types].count("double") == 2
    assert found.column("value").to_pylist()[:4] == [0.0995, 0.1, pytest.approx(0.1005), None]
    assert found.column("run_id").to_pylist() == ["n00"] * 3 + ["n01"] * 3
    there = tmp_path / "none" / "nights.parquet"
    code, _, error = call(path, capsys, "export", "--format", "parquet", "--output", str(there))
    assert code == 2 and "--output" in error and error.count("\n") == 1


def test_without_pyarrow_the_extra_is_named(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    seeded(path, 1)
    monkeypatch.setattr(export.importlib, "import_module", missing)
    file = str(tmp_path / "x.parquet")
    code, _, error = call(path, capsys, "export", "--format", "parquet", "--output", file)
    assert (code, error.count("\n")) == (2, 1)
    assert "pip install 'kvknee[parquet]'" in error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["show", "n0"], "no run 'n0' in"),
        (["show", "n0"], "did you mean n00?"),
        (["show", "elsewhere"], "the newest is n00"),
        (["bad", "n00", "--reason", " "], "--reason: ' ' is not valid"),
        (["baseline", "n00"], "Missing option '--reason'"),
        (["export", "--output", "/"], "--output"),
        (["export", "--format", "parquet"], "--output"),
        (["trend", "ttft_p50"], "METRIC: 'ttft_p50' is not valid; expected ttft_p50_s"),
        (["trend", METRIC, "--cell", "paged 512+128 c5"], f"expected {CELL}"),
        (["sight", "--suite", str(SUITE)], "holds no good run of suite cpu-short; it has s"),
        (["sight", "--suite", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], expected: str
) -> None:
    seeded(path, 1)
    code, _, error = call(path, capsys, *words)
    assert code == 2 and expected in error and error.count("\n") == 1


def test_no_history_no_database_and_an_empty_one(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = call(path, capsys, "list")
    assert code == 2 and "no such history" in error and not path.exists()
    path.write_text("not a database, though long enough to be read as one" * 40)
    code, _, error = call(path, capsys, "list")
    assert code == 2 and "not a history that can be opened" in error
    path.unlink()
    History.open(path).close()
    assert call(path, capsys, "list")[:2] == (0, "no run is stored\n")
    code, _, error = call(path, capsys, "sight")
    assert code == 2 and "holds no good run yet; kvknee nightly SUITE adds one" in error


def test_verdicts_of_an_older_kvknee_have_no_alarms(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    old = sqlite3.connect(path)
    for statement in (*MIGRATIONS[0], *MIGRATIONS[1]):
        old.execute(statement)
    old.execute("INSERT INTO runs VALUES ('n00', 's', 0.0, '1', '', NULL)")
    old.execute("INSERT INTO verdicts VALUES ('n00', 'c', 'ttft_p50_s', 'regressed', 1)")
    old.execute("PRAGMA user_version = 2")
    old.commit()
    old.close()
    # whether it was gated is not known: absent, not zero
    assert call(path, capsys, "list")[1].splitlines()[1].split()[4:] == ["n00", "-", "-"]


@pytest.mark.parametrize("end", ["", "-wal", "-journal"])
def test_an_export_never_overwrites_the_history(
    path: Path, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    seeded(path)
    link = path.with_name("link.csv")
    link.symlink_to(f"{path}{end}")
    for target in (f"{path}{end}", str(link)):
        code, _, said = call(path, capsys, "export", "--output", target)
        assert code == 2 and "another file than the history itself" in said
    assert len(call(path, capsys, "list")[1].splitlines()) == 13


@pytest.mark.parametrize("version", [0, 3])
def test_a_database_of_another_program_is_left_as_it_is(
    path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE bookmarks (url)")
        other.execute(f"PRAGMA user_version = {version}")
        other.commit()
    before = path.read_bytes()
    for words in (["list"], ["bad", "x", "--reason", "y"]):
        code, _, said = call(path, capsys, *words)
        assert code == 2 and "a database of another program" in said
    assert path.read_bytes() == before and [path] == list(path.parent.iterdir())


def test_a_damaged_history_is_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeded(path)
    damage(path)
    for words in (
        ["list"],
        ["show", "n03"],
        ["sight"],
        ["export"],
        ["bad", "n03", "--reason", "x"],
    ):
        code, _, said = call(path, capsys, *words)
        assert code == 2 and said.count("\n") == 1
        assert "malformed" in said and "put a copy back" in said


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("UPDATE figures SET value = 'n/a' WHERE run_id = 'n03'", "n03: a figure is no finite"),
        ("UPDATE figures SET value = 9e999 WHERE run_id = 'n03'", "n03: a figure is no finite"),
        ("UPDATE figures SET requests = 'many' WHERE run_id = 'n03'", "no whole number: many"),
        ("UPDATE runs SET at_wall_s = 1790000000000 WHERE run_id = 'n03'", "n03: its time is"),
        ("UPDATE runs SET at_wall_s = 'today' WHERE run_id = 'n03'", "n03: its time is"),
        ("UPDATE figures SET value = -1 WHERE run_id = 'n03'", "0 or more: -1.0"),
        ("UPDATE runs SET suite = x'ff' WHERE run_id = 'n03'", "n03: its suite is no text"),
        ("UPDATE figures SET cell = x'00' WHERE run_id = 'n03'", "n03: its cell is no text"),
        ("UPDATE setups SET facts = '[]' WHERE run_id = 'n03'", "n03: the facts of a setup"),
        ("UPDATE setups SET facts = '{' WHERE run_id = 'n03'", "n03: the facts of a setup"),
    ],
)
def test_rows_of_another_hand_are_one_line(
    change: str, expected: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    for words in (["list"], ["show", "n03"], ["sight"], ["trend", METRIC], ["export"]):
        code, _, said = call(path, capsys, *words)
        assert code == 2 and said.count("\n") == 1
        assert expected in said and "put a copy back, or mend that row" in said


def damage(path: Path) -> None:
    """All pages but the first, which holds the schema."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))


def test_metrics_of_a_newer_kvknee_are_left_out(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for table in ("figures", "verdicts"):
            connection.execute(f"UPDATE {table} SET metric = 'joules' WHERE run_id = 'n11'")
        connection.commit()
    assert call(path, capsys, "sight", "--all")[0] == 0
    assert "joules" in call(path, capsys, "show", "n11")[1]
