"""The run directory: what a crash, a full disk or a damaged line leaves readable."""

from __future__ import annotations

import os
import random
import threading
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


def scrape_file(run: RunDir, count: int) -> tuple[list[Scrape], list[int]]:
    """Scrapes as written, and where each of their gzip members begins."""
    journal = GzipJournal(run.scrape_path("paged"))
    draw = random.Random(1)
    scrapes, starts = [], []
    for n in range(count):
        text = "".join(f"a_{draw.random()} {draw.random()}\n" for _ in range(20))
        scrapes.append(Scrape(t_s=float(n), took_s=0.01, status=200, text=text))
        starts.append(journal.path.stat().st_size)
        journal.append(scrapes[-1])
    journal.close()
    return scrapes, starts


@pytest.mark.parametrize("offset", [0, 1, 2, 10, 11, 40, 200, -8, -4, -1])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_damaged_byte_costs_one_scrape_and_is_counted(
    tmp_path: Path, index: int, offset: int
) -> None:
    """Magic number, header, data, checksum or length, in the first, a middle or the last one."""
    run = RunDir.create(tmp_path, "run")
    scrapes, starts = scrape_file(run, 5)
    path = run.scrape_path("paged")
    data = bytearray(path.read_bytes())
    ends = [*starts[1:], len(data)]
    data[starts[index] + offset if offset >= 0 else ends[index] + offset] ^= 0xFF
    path.write_bytes(data)
    assert list(run.scrapes("paged")) == scrapes[:index] + scrapes[index + 1 :]
    assert run.damaged == {"paged.jsonl.gz": 1}


@pytest.mark.parametrize("false_start", [b"\x1f\x8b\x08", b"\x1f\x8b\x08" * 50])
def test_a_magic_number_by_chance_gives_no_scrape_and_no_loop(
    tmp_path: Path, false_start: bytes
) -> None:
    run = RunDir.create(tmp_path, "run")
    scrapes, starts = scrape_file(run, 3)
    path = run.scrape_path("paged")
    data = bytearray(path.read_bytes())
    data[starts[1] + 20 : starts[1] + 20 + len(false_start)] = false_start
    path.write_bytes(data)
    assert list(run.scrapes("paged")) == [scrapes[0], scrapes[2]]
    assert run.damaged == {"paged.jsonl.gz": 1}
    # nothing but false starts
    path.write_bytes(false_start * 100)
    assert list(run.scrapes("paged")) == []


def test_a_file_that_is_no_gzip_at_all_is_damage(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.scrape_path("paged").write_bytes(b"not packed\n" * 10)
    assert list(run.scrapes("paged")) == []
    assert run.damaged == {"paged.jsonl.gz": 1}


@pytest.mark.parametrize("between", [b"", b" ", b"\r"])
def test_a_journal_whose_newlines_are_gone_is_damaged(tmp_path: Path, between: bytes) -> None:
    run = RunDir.create(tmp_path, "run")
    path = written(run, 3)
    path.write_bytes(path.read_bytes().replace(b"\n", between))
    assert list(run.records()) == []
    assert run.damaged == {"records.jsonl": 1}


def test_runs_that_begin_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    made: list[Path] = []

    def begin() -> None:
        together.wait(20)
        made.append(RunDir.create(tmp_path, "run").path)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {"run", *(f"run-{number}" for number in range(2, 9))}
    assert {path.name for path in made} == names
    assert all((path / "scrapes").is_dir() for path in made)


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up takes a part of a write: the next line must not join it."""
    run = RunDir.create(tmp_path, "run")
    journal = run.records_journal()
    journal.append(record(0))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:30]))
    with pytest.raises(JournalError, match=r"only 30 of \d+ bytes written"):
        journal.append(record(1))
    monkeypatch.undo()
    journal.append(record(2))
    journal.close()
    assert list(run.records()) == [record(0), record(2)]
    assert run.damaged == {}


def test_a_models_config_is_kept_without_its_private_fields(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    assert run.model_config("paged") is None
    run.write_model_config("paged", {"num_hidden_layers": 4, "_name_or_path": "somewhere"})
    assert run.model_config("paged") == {"num_hidden_layers": 4}
    (tmp_path / "run" / "configs" / "other.json").write_text("[1]")
    assert run.model_config("other") is None
    assert run.damaged == {"other.json": 1}
