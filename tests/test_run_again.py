"""A run directory that is written on again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.journal_bytes import whole_members_bytes
from harness.records import RunEvent, Scrape, wire_bytes
from harness.run_again import RunHold, cut_torn_ends, earlier_outcomes
from harness.rundir import GzipJournal, RunDir
from tests.support.fake_records import cell_of, failure, record
from tests.support.fake_server import PAGED


def test_torn_ends_are_cut_so_that_what_follows_can_be_read(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    events = run.events_journal()
    events.append(RunEvent(t_s=1.0, kind="run_start"))
    events.append_lines(b'{"t_s":2.0,"ki')
    events.close()
    scrapes = GzipJournal(run.scrape_path("a"))
    scrapes.append(Scrape(t_s=1.0, took_s=0.1, text="x"))
    whole = run.scrape_path("a").stat().st_size
    scrapes.append(Scrape(t_s=2.0, took_s=0.1, text="y"))
    scrapes.close()
    with run.scrape_path("a").open("r+b") as file:
        file.truncate(whole + 5)
    cut_torn_ends(run)
    assert run.scrape_path("a").stat().st_size == whole
    again = run.events_journal()
    again.append(RunEvent(t_s=3.0, kind="resumed"))
    again.close()
    assert [event.kind for event in run.events()] == ["run_start", "resumed"]
    assert [scrape.t_s for scrape in run.scrapes("a")] == [1.0]
    assert run.damaged == {}


def test_a_whole_line_without_its_newline_counts_before_and_after(tmp_path: Path) -> None:
    """The kill came between the line's last brace and its newline; 100 kB are whole as well."""
    run = RunDir.create(tmp_path, "run")
    cell = cell_of(PAGED, 1)
    long = RunEvent(t_s=1.0, kind="level_end", cell=cell, detail={"reason": "x" * 100_000})
    for event in (RunEvent(t_s=1.0, kind="level_end", cell=cell), long):
        (run.path / "events.jsonl").write_bytes(wire_bytes(event).removesuffix(b"\n"))
        before = list(run.events())
        assert before == [event]
        cut_torn_ends(run)
        again = run.events_journal()
        again.append(RunEvent(t_s=3.0, kind="resumed"))
        again.close()
        assert [item.kind for item in run.events()] == ["level_end", "resumed"]
        assert run.damaged == {}


def test_damage_at_the_end_is_counted_before_and_after(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    (run.path / "events.jsonl").write_bytes(b'{"t_s":1.0,"kind":"run_start"}{"t_')
    for _ in range(2):
        assert list(run.events()) == []
        cut_torn_ends(run)
    assert run.damaged == {"events.jsonl": 2}


def test_whole_files_and_empty_ones_stay_as_they_are(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    run.records_journal().close()
    cut_torn_ends(run)
    assert (run.path / "records.jsonl").read_bytes() == b""
    assert whole_members_bytes(b"") == 0
    # damage in the middle is counted by the reader, and nothing behind it is lost
    journal = GzipJournal(run.scrape_path("a"))
    journal.append(Scrape(t_s=1.0, took_s=0.1))
    data = run.scrape_path("a").read_bytes()
    assert whole_members_bytes(b"damage" + data) == len(data) + 6


def test_the_outcomes_of_finished_cells_count_on(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    one, other = cell_of(PAGED, 1), cell_of(PAGED, 4)
    journal = run.records_journal()
    for item in (record(one, 1), failure(one, 2), record(other, 3)):
        journal.append(item)
    journal.close()
    assert earlier_outcomes(run, {one}) == {"ok": 1, "reset": 1}
    # begun anew at 10.5 s, where the two were due at 10 s: they count no more
    events = run.events_journal()
    events.append(RunEvent(t_s=10.5, kind="level_redone", cell=one))
    events.close()
    assert earlier_outcomes(run, {one, other}) == {"ok": 1}


def test_a_run_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    hold = RunHold(run)
    with pytest.raises(UsageError, match="another process is still measuring"):
        RunHold(run)
    hold.close()
    RunHold(run).close()
