"""The run directory: what a crash, a full disk or a damaged line leaves readable."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from harness.errors import JournalError, ResultsDirError, RunDirError
from harness.records import CellKey, RequestRecord, RunEvent, Scrape, token_times_us, wire_bytes
from harness.rundir import GzipJournal, RunDir

CELL = CellKey("paged", "paged", 512, 128, 16.0)


def record(seq: int) -> RequestRecord:
    return RequestRecord(
        worker="w0",
        seq=seq,
        cell=CELL,
        user=0,
        outcome="ok",
        t_intended_s=1.0,
        t_sent_s=1.0,
        t_end_s=2.0,
        token_us=(5_000, 10_000, 10_000),
        asked_prompt_tokens=512,
        asked_output_tokens=3,
        prompt_hash="00",
    )


def written(run: RunDir, count: int) -> Path:
    journal = run.records_journal()
    for seq in range(count):
        journal.append(record(seq))
    journal.close()
    return journal.path


def test_records_come_back_as_written(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    written(run, 3)
    assert list(run.records()) == [record(0), record(1), record(2)]
    assert run.damaged == {}


def test_token_times_are_sums_of_the_deltas() -> None:
    # 5 ms, then 5 + 10 = 15 ms, then 25 ms
    assert token_times_us(record(0)) == [5_000, 15_000, 25_000]


@pytest.mark.parametrize("cut", range(2, 40))
def test_a_torn_last_line_is_skipped_without_a_word(tmp_path: Path, cut: int) -> None:
    run = RunDir.create(tmp_path, "run")
    path = written(run, 2)
    os.truncate(path, path.stat().st_size - cut)
    assert list(run.records()) == [record(0)]
    assert run.damaged == {}


def test_a_damaged_line_in_the_middle_is_counted(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    path = written(run, 1)
    with path.open("ab") as file:
        file.write(b"{not json}\n" + wire_bytes(record(1)))
    assert list(run.records()) == [record(0), record(1)]
    assert run.damaged == {"records.jsonl": 1}


def test_scrapes_survive_a_torn_gzip_member(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    journal = GzipJournal(run.scrape_path("paged"))
    scrapes = [Scrape(t_s=float(n), took_s=0.01, status=200, text="a 1\n" * 50) for n in range(3)]
    for scrape in scrapes:
        journal.append(scrape)
    journal.close()
    os.truncate(journal.path, journal.path.stat().st_size - 3)
    assert list(run.scrapes("paged")) == scrapes[:2]
    assert list(run.scrapes("never")) == []


def test_events_without_a_file_are_none(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    assert list(run.events()) == []
    journal = run.events_journal()
    event = RunEvent(t_s=1.0, kind="level_start", cell=CELL, detail={"users": 16})
    journal.append(event)
    assert list(run.events()) == [event]


def test_a_second_run_of_the_same_name_gets_a_number(tmp_path: Path) -> None:
    assert RunDir.create(tmp_path, "run").path.name == "run"
    assert RunDir.create(tmp_path, "run").path.name == "run-2"
    assert RunDir.create(tmp_path, "run").path.name == "run-3"


def test_a_results_folder_that_is_a_file_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsDirError, match=r"--results-dir: .*cannot be written") as caught:
        RunDir.create(tmp_path / "file", "run")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no run directory"):
        RunDir.open(tmp_path)


def test_a_newer_schema_is_refused_by_number(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode({"schema_version": 99}))
    with pytest.raises(RunDirError, match="schema 99 is newer"):
        RunDir.open(tmp_path).manifest()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}'])
def test_a_damaged_manifest_is_said_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunDirError, match="damaged"):
        RunDir.open(tmp_path).manifest()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_journal_error(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    (run.path / "records.jsonl").symlink_to("/dev/full")
    with pytest.raises(JournalError, match="No space left"):
        run.records_journal().append(record(0))
