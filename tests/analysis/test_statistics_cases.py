"""Field cases of statistics that a run with several workers or levels must get right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.records import CellKey, RequestRecord, RunEvent
from harness.rundir import RunDir
from tests.support.fake_records import cell_of, record
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, manifest
from tests.support.run_files import write_run

GAP_US = 1000


def answers(
    cell: CellKey, ttfts_s: Sequence[float], worker: str, at_s: float
) -> list[RequestRecord]:
    """One user's requests back to back, each of three tokens 1 ms apart."""
    made: list[RequestRecord] = []
    for seq, ttft_s in enumerate(ttfts_s):
        end_s = at_s + ttft_s + 2 * GAP_US * 1e-6
        made.append(
            record(cell, seq, worker=worker, user=0, prompt_hash=f"{cell.label} {worker} {seq}",
                   t_intended_s=at_s, t_sent_s=at_s, t_end_s=end_s,
                   token_us=(round(ttft_s * 1e6), GAP_US, GAP_US))
        )  # fmt: skip
        at_s = end_s
    return made


def marks(cell: CellKey, records: Sequence[RequestRecord]) -> list[RunEvent]:
    """One user; its first request is the warm-up, all later ones are counted."""
    begun, ended = records[0].t_intended_s, records[-1].t_end_s
    return [
        RunEvent(t_s=begun, kind="level_start", cell=cell, detail={"users": 1}),
        RunEvent(t_s=ended, kind="window_close", cell=cell),
        RunEvent(t_s=ended, kind="level_end", cell=cell, detail={"reason": "complete"}),
    ]


def reported(run: Run, tmp_path: Path) -> RunSummary:
    """Through the run directory, as ``kvknee report`` reads it."""
    read = RunDir.open(write_run(run, tmp_path))
    return analyse(read.manifest(), read.records(), read.events(), {}, read.damaged, read.absent)


@pytest.mark.parametrize(
    ("first", "n_second", "p95_s"),
    [
        # 110 samples: position 0.95 x 109 = 103.55, where 90 tens and 10 twenties lie below
        # 2 s; the workers' own p95 are 0.02 and 2 s, their mean 1.01 s
        ([0.010] * 90 + [0.020] * 10, 10, 2.0),
        # 1010 samples: position 958.55 lies among the thousand tens; the mean is 1.005 s
        ([0.010] * 1000, 10, 0.010),
    ],
)
def test_b39_percentiles_of_two_workers_are_those_of_their_merged_records(
    tmp_path: Path, first: list[float], n_second: int, p95_s: float
) -> None:
    cell = cell_of(PAGED, 1)
    # the warm-up request is w0's number 0
    one = answers(cell, [0.5, *first], "w0", 1000.0)
    two = answers(cell, [2.0] * n_second, "w1", one[-1].t_end_s)
    run = Run(manifest((PAGED,), (1,), (100,)), [*one, *two], marks(cell, [*one, *two]))
    found = reported(run, tmp_path).cells[0]
    assert found.counts.ok == found.latency.ttft_s.n == len(first) + n_second
    assert found.latency.ttft_s.value(95) == pytest.approx(p95_s)
    # both workers number from 0: equal numbers of two workers are no duplicates
    assert found.counts.duplicates == 0
    assert found.counts.recorded == 1 + len(first) + n_second


def test_b35_times_below_and_above_locusts_buckets_are_kept_to_the_microsecond(
    tmp_path: Path,
) -> None:
    cell = cell_of(PAGED, 1)
    # a store that rounds to 1 ms makes 0, 1, 2, 2 of the first four, one of two digits
    # 1.2, 1.2, 1.3 and 15 s of the others
    ttfts_s = [0.0004, 0.0006, 0.0015, 0.0025, 1.249, 1.250, 1.251, 15.499]
    records = answers(cell, [0.5, *ttfts_s], "w0", 1000.0)
    run = Run(manifest((PAGED,), (1,), (1,)), records, marks(cell, records))
    found = reported(run, tmp_path).cells[0].latency.ttft_s
    assert (found.minimum, found.maximum) == pytest.approx((0.0004, 15.499))
    # position 0.25 x 7 = 1.75 between 0.6 and 1.5 ms, 0.5 x 7 = 3.5 between 2.5 and 1,249 ms
    assert found.value(25) == pytest.approx(0.001275)
    assert found.value(50) == pytest.approx(0.62575)


def test_b41_a_level_has_its_own_percentiles_neither_a_trailing_nor_a_cumulative_window(
    tmp_path: Path,
) -> None:
    low, high = cell_of(PAGED, 1), cell_of(PAGED, 2)
    # 100 answers of 10 ms, then, within the ten seconds of a trailing window, 100 of 1 s
    fast = answers(low, [0.010] * 101, "w0", 1000.0)
    slow = answers(high, [1.0] * 101, "w1", fast[-1].t_end_s)
    events = [*marks(low, fast), *marks(high, slow)]
    run = Run(manifest((PAGED,), (1, 2), (100, 100)), [*fast, *slow], events)
    cells = reported(run, tmp_path).cells
    for found, ttft_s in zip(cells, (0.010, 1.0), strict=True):
        assert found.latency.ttft_s.n == 100
        # a cumulative p50 of all 200 would be 0.505 s, the first level's at its end 1 s
        assert found.latency.ttft_s.value(5) == pytest.approx(ttft_s)
        assert found.latency.ttft_s.value(95) == pytest.approx(ttft_s)
