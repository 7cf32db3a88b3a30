"""The master's time on a worker."""

from __future__ import annotations

from pathlib import Path

from harness.load.distributed.clock_map import SAME_CLOCK, ClockMap, Offset, boot_id
from harness.load.distributed.worker_run import in_masters_time
from tests.load.test_run_parts import record


def test_the_narrowest_round_trip_is_taken() -> None:
    clocks = ClockMap(same_kernel=False)
    # the master's clock is 1000 s ahead; the way back took 30 ms, then 1 ms each way
    clocks.answered(10.0, 1010.0, 10.03)
    clocks.answered(20.0, 1020.001, 20.002)
    offset = clocks.offset()
    assert abs(offset.offset_s - 1000.0) < 1e-9
    assert abs(offset.uncertainty_s - 0.001) < 1e-9
    # to the master's and back
    assert offset.to_own(offset.to_master(12.5)) == 12.5


def test_the_error_lies_within_the_uncertainty() -> None:
    for there_ms in range(11):
        clocks = ClockMap(same_kernel=False)
        # 10 ms in all, however the two ways share it
        clocks.answered(5.0, 105.0 + there_ms / 1000, 5.01)
        offset = clocks.offset()
        assert abs(offset.offset_s - 100.0) <= offset.uncertainty_s + 1e-9


def test_one_kernel_has_one_clock() -> None:
    clocks = ClockMap(same_kernel=True)
    assert clocks.offset() == SAME_CLOCK
    clocks.answered(10.0, 10.004, 10.005)
    assert clocks.offset() == SAME_CLOCK


def test_unless_a_namespace_parts_them() -> None:
    clocks = ClockMap(same_kernel=True)
    clocks.answered(10.0, 510.001, 10.002)
    assert abs(clocks.offset().offset_s - 500.0) < 1e-9


def test_a_records_times_are_shifted_and_its_latencies_are_not() -> None:
    own = record(token_us=(200_000, 10_000), connect_s=0.001, headers_s=0.2)
    assert in_masters_time(own, SAME_CLOCK) is own
    shifted = in_masters_time(own, Offset(1000.0, 0.001))
    assert (shifted.t_intended_s, shifted.t_sent_s, shifted.t_end_s) == (1001.0, 1001.5, 1003.5)
    assert (shifted.token_us, shifted.connect_s, shifted.headers_s) == (
        own.token_us,
        own.connect_s,
        own.headers_s,
    )
    unsent = in_masters_time(record("connect", t_sent_s=None), Offset(1000.0, 0.001))
    assert unsent.t_sent_s is None


def test_a_boot_without_a_name(tmp_path: Path) -> None:
    assert boot_id(tmp_path / "missing") is None
    (tmp_path / "id").write_text("abc\n")
    assert boot_id(tmp_path / "id") == "abc"
