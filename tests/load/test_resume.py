"""What an interrupted run says of itself, and whether it may go on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.errors import RunDirError, UsageError
from harness.load.options import default_texts
from harness.load.resume import Resumption, read_resumption, resumed_options
from harness.plan.fingerprint import fingerprint
from harness.records import CellKey, RunEvent
from harness.rundir import LAST_REPORT, RunDir
from harness.workload import MatrixLimits, Workload
from tests.load.test_matrix_settings import matrix
from tests.support.fake_server import paged_info
from tests.support.run_builder import manifest

WORK = matrix(
    prompt_tokens="8,16", output_tokens="4", levels="1,2", min_requests="3,5", seed="9",
    min_level_seconds="0.25", slo="ttft:500", request_timeout="30",
).workload  # fmt: skip
HARDWARE = {"cpu": "x"}
INFO = paged_info(model="m")


def cell(prompt: int, level: float) -> CellKey:
    return CellKey("paged", "paged", prompt, 4, level)


def interrupted(tmp_path: Path, *events: RunEvent, workload: Workload = WORK) -> Path:
    facts = fingerprint(workload, [INFO], HARDWARE, "0.1.0")
    kept = manifest(workload=workload, fingerprint=facts, status="running", backends=(INFO,))
    run = RunDir.create(tmp_path, "run")
    run.write_manifest(kept)
    journal = run.events_journal()
    for event in events:
        journal.append(event)
    journal.close()
    (run.path / "records.jsonl").write_bytes(b"{}\n")
    return run.path


def event(kind: str, t_s: float, key: CellKey | None = None, **detail: object) -> RunEvent:
    raw = {"t_s": t_s, "kind": kind, "detail": detail}
    raw |= {"cell": msgspec.to_builtins(key)} if key is not None else {}
    return msgspec.convert(raw, RunEvent)


HALF = (
    event("run_start", 1000.0),
    event("level_start", 1001.0, cell(8, 1)),
    event("level_end", 1004.5, cell(8, 1), reason="complete"),
    event("level_start", 1005.0, cell(8, 2)),
    event("level_end", 1006.0, cell(8, 2), reason="time_limit"),
    event("level_skipped", 1006.0, cell(16, 2), reason="interrupted"),
    event("level_start", 1007.0, cell(16, 1)),
)


def test_cells_are_finished_begun_or_untouched(tmp_path: Path) -> None:
    found = read_resumption(interrupted(tmp_path, *HALF), "matrix")
    assert [(item.cell, item.took_s) for item in found.finished] == [
        (cell(8, 1), 3.5),
        (cell(8, 2), 1.0),
    ]
    assert found.begun == (cell(16, 1),)
    assert (found.worker, found.last_s) == ("local-2", 1007.0)


@pytest.mark.parametrize("kept", [None, b""])
def test_finished_cells_without_their_records_are_not_taken_for_finished(
    tmp_path: Path, kept: bytes | None
) -> None:
    path = interrupted(tmp_path, *HALF)
    (path / "records.jsonl").unlink()
    if kept is not None:
        (path / "records.jsonl").write_bytes(kept)
    with pytest.raises(RunDirError, match="is missing or empty"):
        read_resumption(path, "matrix")


def test_a_level_that_was_cut_off_is_not_finished(tmp_path: Path) -> None:
    cut = event("level_end", 1009.0, cell(16, 1), reason="backend_lost")
    found = read_resumption(interrupted(tmp_path, *HALF, cut), "matrix")
    assert found.begun == (cell(16, 1),)


def test_a_third_try_has_a_name_of_its_own(tmp_path: Path) -> None:
    again = (
        event("resumed", 1010.0, worker="local-2"),
        event("level_redone", 1010.0, cell(16, 1)),
        event("level_start", 1011.0, cell(16, 1)),
        event("level_end", 1012.0, cell(16, 1), reason="complete"),
    )
    found = read_resumption(interrupted(tmp_path, *HALF, *again), "matrix")
    assert (found.worker, found.begun) == ("local-3", ())
    assert len(found.finished) == 3


def test_other_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no run directory"):
        read_resumption(tmp_path / "nowhere", "matrix")
    path = interrupted(tmp_path, *HALF)
    with pytest.raises(UsageError, match="is a run of scenario matrix; expected one of soak"):
        read_resumption(path, "soak")
    (path / "events.jsonl").unlink()
    with pytest.raises(RunDirError, match=r"events.jsonl of .* is missing"):
        read_resumption(path, "matrix")


def test_options_left_out_are_the_runs_own(tmp_path: Path) -> None:
    found = read_resumption(interrupted(tmp_path, *HALF), "matrix")
    defaults = default_texts("matrix")
    given = {**defaults, "seed": "3"}
    options = resumed_options(given, defaults, found.manifest)
    assert options["backends"] == "paged=http://127.0.0.1:8000"
    ramped = msgspec.structs.replace(found.manifest.workload, ramp_up_s=2.5)
    of_ramped = msgspec.structs.replace(found.manifest, workload=ramped)
    assert resumed_options(given, defaults, of_ramped)["ramp_up_seconds"] == "2.5"
    # what was given stays, and will be found to differ
    assert options["seed"] == "3"
    again = matrix(**{**options, "seed": "9"})
    assert again.workload == WORK
    assert again.slo == found.manifest.slo


def test_the_limits_of_a_matrix_are_the_runs_own(tmp_path: Path) -> None:
    found = read_resumption(interrupted(tmp_path, *HALF), "matrix")
    limits = MatrixLimits(budget_s=5400.0, skip_beyond_budget=True)
    kept = msgspec.structs.replace(found.manifest, matrix=limits)
    defaults = default_texts("matrix")
    again = matrix(**resumed_options(defaults, defaults, kept)).matrix
    assert again is not None
    assert again.limits == limits
    more = matrix(**resumed_options({**defaults, "budget_minutes": "120"}, defaults, kept)).matrix
    assert more is not None
    assert more.limits == MatrixLimits(budget_s=7200.0, skip_beyond_budget=True)


def test_a_run_is_reported_once_it_is_complete_and_its_report_lies_there(tmp_path: Path) -> None:
    path = interrupted(tmp_path, *HALF)
    run = RunDir.open(path)
    assert not read_resumption(path, "matrix").reported
    run.write_manifest(msgspec.structs.replace(run.manifest(), status="complete"))
    assert not read_resumption(path, "matrix").reported
    (path / LAST_REPORT).write_text("x")
    assert read_resumption(path, "matrix").reported


def test_the_same_may_go_on_and_another_may_not(tmp_path: Path) -> None:
    found = read_resumption(interrupted(tmp_path, *HALF), "matrix")
    same = fingerprint(WORK, [INFO], HARDWARE, "0.1.0")
    found.require_same(same, WORK)
    other = msgspec.structs.replace(WORK, levels=(1.0, 4.0), shapes=((8, 4),))
    facts = fingerprint(other, [paged_info(model="m", dtype="float32")], HARDWARE, "0.1.0")
    with pytest.raises(UsageError) as caught:
        found.require_same(facts, other)
    text = str(caught.value)
    assert "\n" not in text
    assert "--levels is 1,4, there it is 1,2" in text
    assert "--prompt-tokens and --output-tokens is 8+4, there it is 8+4 16+4" in text
    assert "paged.dtype is float32, there it is bfloat16" in text
    assert caught.value.exit_code == 2


class FixedClock:
    def __init__(self, monotonic_s: float, wall_s: float) -> None:
        self._monotonic_s, self._wall_s = monotonic_s, wall_s

    def monotonic(self) -> float:
        return self._monotonic_s

    def wall(self) -> float:
        return self._wall_s


@pytest.mark.parametrize(
    ("later_s", "monotonic_s", "shift_s"),
    [
        # one boot: both clocks went on together, a step of the wall clock aside
        (50.0, 1050.0, 0.0),
        (58.0, 1050.0, 0.0),
        # after a restart the monotonic clock began anew: 1000 + 300 - 20
        (300.0, 20.0, 1280.0),
        # the wall clock was set back meanwhile: no time lies before one that is known
        (-400.0, 20.0, 987.0),
    ],
)
def test_times_go_on_rising(
    later_s: float, monotonic_s: float, shift_s: float, tmp_path: Path
) -> None:
    found: Resumption = read_resumption(interrupted(tmp_path, *HALF), "matrix")
    wall_s = found.manifest.t0_wall_s + later_s
    assert found.manifest.t0_s == 1000.0
    assert found.shift_s(FixedClock(monotonic_s, wall_s)) == pytest.approx(shift_s)
