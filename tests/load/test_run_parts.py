"""The small parts of a run, each alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ResultsDirError
from harness.load.backend_watch import BackendWatch
from harness.load.launched import complete, launched_as
from harness.load.machine import _cpu_model, environment, hardware, parse_gpus
from harness.load.plan import check_results_dir
from harness.load.recorder import Recorder
from harness.load.report_row import stats_rows
from harness.load.self_check import LagMeter
from harness.load.user_numbers import UserNumbers
from harness.manifest import BackendInfo
from harness.records import CellKey, Outcome, RequestRecord
from harness.rundir import RunDir
from harness.stack.state import LaunchedBackend
from tests.load.test_level import FakeClock

CELL = CellKey("paged", "paged", 512, 128, 16.0)


def record(outcome: Outcome = "ok", **facts: object) -> RequestRecord:
    base: dict[str, object] = {
        "worker": "local",
        "seq": 1,
        "cell": CELL,
        "user": 0,
        "outcome": outcome,
        "t_intended_s": 1.0,
        "t_sent_s": 1.5,
        "t_end_s": 3.5,
        "asked_prompt_tokens": 512,
        "asked_output_tokens": 128,
        "prompt_hash": "0",
        "bytes_received": 900,
    }
    return RequestRecord(**{**base, **facts})  # type: ignore[arg-type]


def test_b52_sent_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    recorder = Recorder(RunDir.create(tmp_path, "r"))
    outcomes: list[Outcome] = ["ok", "ok", "ok", "timeout", "cancelled"]
    for outcome in outcomes:
        recorder.record(record(outcome))
    recorder.close()
    assert (recorder.sent, recorder.outcomes["ok"], recorder.failed) == (5, 3, 1)
    # 1 failed of the 4 that were judged
    assert recorder.failure_rate == 0.25
    assert [r.outcome for r in RunDir(tmp_path / "r").records()] == outcomes


def test_no_requests_no_rate(tmp_path: Path) -> None:
    recorder = Recorder(RunDir.create(tmp_path, "r"))
    recorder.record(record("cancelled"))
    recorder.close()
    assert recorder.failure_rate is None


def test_a_journal_that_cannot_be_written_is_a_fault_not_an_end(tmp_path: Path) -> None:
    recorder = Recorder(RunDir.create(tmp_path, "r"))
    recorder.record(record())
    recorder.close()  # as good as a full disk: the next write fails
    recorder.record(record("timeout"))
    assert recorder.fault is not None
    assert "records.jsonl" in recorder.fault
    # it is still counted
    assert (recorder.sent, recorder.failed) == (2, 1)


def test_rows_of_a_success() -> None:
    # TTFT 200 ms, then 3 gaps of 10 ms for 7 tokens: TPOT = 30 / (7 - 1) = 5 ms
    rows = list(stats_rows(record(token_us=(200_000, 10_000, 10_000, 10_000), output_tokens=7)))
    assert [(r.request_type, r.name, r.response_time_ms) for r in rows] == [
        ("TTFT", "paged c16", 200.0),
        ("TPOT", "paged c16", 5.0),
        ("E2E", "paged c16", 230.0),
    ]
    assert all(row.failure is None for row in rows)


def test_rows_of_a_single_token_have_no_tpot() -> None:
    rows = list(stats_rows(record(token_us=(200_000,), output_tokens=1)))
    assert [row.request_type for row in rows] == ["TTFT", "E2E"]


def test_b37_a_failure_is_one_row_and_never_a_ttft() -> None:
    (row,) = stats_rows(record("timeout", error="no end", token_us=(1,)))
    assert (row.request_type, row.failure) == ("E2E", "timeout: no end")
    # sent at 1.5, given up at 3.5
    assert row.response_time_ms == 2000
    (row,) = stats_rows(record("connect", t_sent_s=None))
    assert row.response_time_ms == 2500


def test_a_cancelled_request_is_no_row() -> None:
    assert list(stats_rows(record("cancelled"))) == []


def test_the_client_watches_itself() -> None:
    clock, cpu = FakeClock(), [0.0]
    meter = LagMeter(clock, lambda: cpu[0], lambda: 7)
    for _ in range(19):
        clock.now += 0.05
        meter.woke(clock.now)
        assert meter.report(3) is None
    clock.now += 0.25
    cpu[0] = 0.6
    meter.woke(clock.now - 0.2)  # 0.2 s late
    event = meter.report(3)
    assert event is not None
    # 0.6 s of CPU in 19 x 0.05 + 0.25 = 1.2 s
    assert event.detail == {"loop_lag_s": 0.2, "cpu_ratio": 0.5, "in_flight": 3, "time_wait": 7}
    # the next second starts afresh
    clock.now += 1.0
    meter.woke(clock.now)
    event = meter.report(0)
    assert event is not None
    assert event.detail == {"loop_lag_s": 0.0, "cpu_ratio": 0.0, "in_flight": 0, "time_wait": 7}


def test_a_backend_is_lost_when_health_fails_for_some_seconds() -> None:
    clock, healthy = FakeClock(), [False]
    watch = BackendWatch(clock, lambda _: healthy[0], lost_after_s=3)
    assert not watch.is_lost("paged", unanswered=True)
    clock.now += 2
    assert not watch.is_lost("paged", unanswered=True)
    clock.now += 1
    assert watch.is_lost("paged", unanswered=True)


def test_levels_that_end_within_seconds_do_not_begin_the_time_anew() -> None:
    clock = FakeClock()
    watch = BackendWatch(clock, lambda _: False, lost_after_s=5)
    assert not watch.is_lost("paged", unanswered=True)
    clock.now += 3
    # the next level has begun, and none of its requests has ended
    assert not watch.is_lost("paged", unanswered=None)
    clock.now += 2
    assert watch.is_lost("paged", unanswered=True)


def test_an_answer_ends_the_time() -> None:
    clock = FakeClock()
    watch = BackendWatch(clock, lambda _: False, lost_after_s=5)
    watch.is_lost("paged", unanswered=True)
    clock.now += 3
    assert not watch.is_lost("paged", unanswered=False)
    clock.now += 3
    assert not watch.is_lost("paged", unanswered=True)


def test_a_hiccup_is_forgotten() -> None:
    clock, healthy = FakeClock(), [False]
    watch = BackendWatch(clock, lambda _: healthy[0], lost_after_s=3)
    watch.is_lost("paged", unanswered=True)
    clock.now += 2
    healthy[0] = True
    assert not watch.is_lost("paged", unanswered=True)
    healthy[0] = False
    clock.now += 2
    assert not watch.is_lost("paged", unanswered=True)
    clock.now += 2
    # another backend's trouble is its own
    assert not watch.is_lost("contiguous", unanswered=True)


def test_health_is_not_asked_while_requests_are_answered() -> None:
    def asked(_: str) -> bool:
        raise AssertionError

    assert not BackendWatch(FakeClock(), asked).is_lost("paged", unanswered=False)


LAUNCH = LaunchedBackend(
    name="paged",
    url="http://127.0.0.1:8000",
    pid=1,
    pid_started_s=0,
    kind="vllm",
    mode="paged",
    model="tiny",
    model_path="p",
    served_model_name="m",
    dtype="bfloat16",
    max_model_len=2048,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    kv_budget_bytes=1,
    kv_bytes_per_token=1024,
    block_size=None,
    log="l",
)


def info(**facts: object) -> BackendInfo:
    base = {
        "name": "x",
        "url": "http://localhost:8000",
        "kind": "vllm",
        "mode": "paged",
        "model": "m",
    }
    return BackendInfo(**{**base, **facts})  # type: ignore[arg-type]


def test_a_launched_server_is_completed_and_not_overruled() -> None:
    found = launched_as(info(kv_budget_bytes=16777216, block_size=128), [LAUNCH])
    assert found is LAUNCH
    full = complete(info(kv_budget_bytes=16777216, block_size=128), found)
    assert (full.dtype, full.max_num_seqs, full.kv_bytes_per_token) == ("bfloat16", 64, 1024)
    # what the server states itself stays
    assert (full.kv_budget_bytes, full.block_size) == (16777216, 128)
    assert full.source == "launched"


@pytest.mark.parametrize("facts", [{"url": "http://127.0.0.1:8001"}, {"model": "other"}])
def test_another_server_is_not_taken_for_the_launched_one(facts: dict[str, object]) -> None:
    assert launched_as(info(**facts), [LAUNCH]) is None


def test_the_machine_is_described() -> None:
    facts = hardware()
    assert isinstance(facts["cores"], int)
    assert isinstance(facts["memory_bytes"], int)
    assert environment()["locust"]


def test_the_cpu_model_is_read_from_the_systems_list(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n")
    assert _cpu_model(path) == "Some CPU @ 2 GHz"


def test_gpu_names_and_driver() -> None:
    assert parse_gpus("NVIDIA H100, 550.54\nNVIDIA H100, 550.54\n") == {
        "gpus": "NVIDIA H100, NVIDIA H100",
        "gpu_driver": "550.54",
    }
    assert parse_gpus("No devices were found") == {}


def test_a_results_dir_that_cannot_be_written(tmp_path: Path) -> None:
    check_results_dir(tmp_path / "new" / "folder")
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsDirError, match=r"--results-dir: .* cannot be written"):
        check_results_dir(tmp_path / "file" / "results")


def test_locust_is_told_anew_when_users_are_missing() -> None:
    numbers = UserNumbers()
    assert numbers.tick(4, missing=True) == (4, 4)
    # all are there: nothing changes, so Locust does nothing
    assert numbers.tick(4, missing=False) == (4, 4)
    nudged = numbers.tick(4, missing=True)
    assert nudged[0] == 4
    assert nudged != (4, 4)
    assert numbers.tick(4, missing=True) == (4, 4)
    assert numbers.tick(500, missing=False) == (500, 100)


def test_of_several_lengths_locusts_rows_tell_them_apart() -> None:
    row = next(stats_rows(record(token_us=(200_000,), output_tokens=1), lengths=True))
    assert row.name == "paged 512+128 c16"
