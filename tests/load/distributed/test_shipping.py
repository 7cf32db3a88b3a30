"""Records on their way from workers to the master: twice, in disorder, late, never."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from harness.load.distributed.intake import Intake, Seen
from harness.load.distributed.messages import Shipment
from harness.load.distributed.outbox import RESEND_AFTER_S, Outbox
from harness.load.recorder import Recorder
from harness.records import RequestRecord, RunEvent
from harness.rundir import RunDir
from tests.load.test_run_parts import record


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def shipments(worker: str, batches: int, each: int, run: str = "r") -> list[Shipment]:
    """What a worker ships: batch k holds ``each`` records, the last one none."""
    outbox, found = Outbox(run, worker), []
    seq = 0
    for number in range(batches):
        for _ in range(each):
            seq += 1
            outbox.record(record(worker=worker, seq=seq))
        outbox.event(RunEvent(t_s=float(number), kind="client_sample", detail={"worker": worker}))
        outbox.pack(float(number), last=number == batches - 1)
        found += outbox.due(float(number))
    outbox.close()
    return found


def test_b40_two_workers_one_shipment_twice_one_after_the_stop(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path, "run")
    recorder = Recorder(run_dir)
    first, second = shipments("w1", 3, each=4), shipments("w2", 2, each=5)
    intakes = {"w1": Intake("w1"), "w2": Intake("w2")}

    def arrive(worker: str, shipment: Shipment) -> None:
        taken = intakes[worker].take(shipment)
        recorder.shipped(taken.records, taken.outcomes, taken.events)

    arrive("w1", first[0])
    arrive("w2", second[0])
    arrive("w1", first[1])
    arrive("w1", first[1])
    assert not any(intake.complete for intake in intakes.values())
    # the run is over; what was recorded last is still taken
    arrive("w2", second[1])
    arrive("w1", first[2])
    recorder.close()
    assert all(intake.complete for intake in intakes.values())
    records = list(run_dir.records())
    # 3 x 4 + 2 x 5
    assert len(records) == recorder.sent == 22
    assert sum(intake.records for intake in intakes.values()) == 22
    assert len({(r.worker, r.seq) for r in records}) == 22
    assert len(list(run_dir.events())) == 5


@pytest.mark.parametrize("seed", range(20))
def test_any_order_and_any_repetition_gives_each_record_once(seed: int) -> None:
    draw = random.Random(seed)
    sent = shipments("w1", 6, each=3)
    arriving = [*sent, *draw.choices(sent, k=6)]
    draw.shuffle(arriving)
    intake, lines = Intake("w1"), b""
    for shipment in arriving:
        lines += intake.take(shipment).records
    records = [msgspec.json.decode(line, type=RequestRecord) for line in lines.splitlines()]
    assert sorted(r.seq for r in records) == list(range(1, 19))
    assert intake.complete
    assert (intake.records, intake.last_seq, intake.made_s) == (18, 18, 5.0)


def test_a_missing_shipment_leaves_it_incomplete() -> None:
    sent = shipments("w1", 3, each=2)
    intake = Intake("w1")
    intake.take(sent[0])
    intake.take(sent[2])
    assert not intake.complete
    assert (intake.records, intake.last_seq) == (4, 6)
    intake.take(sent[1])
    assert intake.complete


def test_a_record_in_two_shipments_is_taken_once_and_a_strangers_not_at_all() -> None:
    (one,) = shipments("w1", 1, each=2)
    again = msgspec.structs.replace(one, number=2)
    (other,) = shipments("w2", 1, each=1)
    torn = msgspec.structs.replace(one, number=3, records=other.records + b'{"worker": "w1"')
    intake = Intake("w1")
    assert intake.take(one).outcomes == ("ok", "ok")
    assert intake.take(again).outcomes == ()
    assert intake.take(torn).records == b""
    assert intake.damaged == 2


def test_numbers_seen_stay_few() -> None:
    seen = Seen()
    assert [seen.add(number) for number in (2, 3, 2, 1, 1)] == [True, True, False, True, False]
    assert (seen.upto, seen.highest) == (3, 3)
    assert seen.add(9)
    assert (seen.upto, seen.highest) == (3, 9)


def test_a_shipment_is_sent_again_until_it_is_acknowledged() -> None:
    outbox = Outbox("r", "w1")
    outbox.record(record(worker="w1"))
    outbox.pack(1.0)
    assert [s.number for s in outbox.due(10.0)] == [1]
    assert outbox.due(10.0 + RESEND_AFTER_S / 2) == []
    (again,) = outbox.due(10.0 + RESEND_AFTER_S)
    # a round trip is timed from the last sending
    assert (again.number, again.own_s) == (1, 10.0 + RESEND_AFTER_S)
    outbox.acknowledged(1)
    outbox.acknowledged(1)
    assert not outbox.empty
    outbox.pack(2.0, last=True)
    outbox.pack(3.0)
    assert [s.last for s in outbox.due(20.0)] == [True]
    outbox.acknowledged(2)
    assert outbox.empty
    # nothing is left of what the master has
    assert outbox.close() is None
    assert not outbox.folder.exists()


def test_what_the_master_never_took_is_kept() -> None:
    outbox = Outbox("r", "w1")
    outbox.record(record(worker="w1", seq=1))
    outbox.record(record(worker="w1", seq=2))
    outbox.pack(1.0, last=True)
    kept = outbox.close()
    assert kept is not None
    assert [r.seq for r in RunDir(kept).records()] == [1, 2]


def test_a_worker_without_a_folder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.errors import JournalError

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(JournalError, match="no folder"):
        Outbox("r", "w1")
