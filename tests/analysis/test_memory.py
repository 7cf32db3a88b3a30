from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from harness.analysis.admission import judge_admission
from harness.analysis.memory import client_tokens_held, measure_memory
from harness.analysis.summary_types import AdmissionVerdict, Counts, MemoryFigures, Window
from harness.analysis.table import ErrorText, TableBuilder, build_tables
from harness.manifest import BackendInfo
from harness.observe.series import BackendSeries, KvPool, Series
from tests.support.fake_records import cell_of, record
from tests.support.fake_server import MIB, PAGED, paged_info, static_info

CELL = cell_of(PAGED, 32)
POOL = KvPool(total_bytes=16 * MIB, num_blocks=128, block_size=128, size_tokens=16384)
WINDOW = Window(
    users=32,
    start_s=0.0,
    open_s=1.0,
    close_s=10.0,
    last_counted_s=11.0,
    end_s=12.0,
    closed_by="event",
    reason=None,
    full_share=1.0,
    ramp_s=0.0,
    warmup_s=1.0,
    follow_s=1.0,
    drain_s=1.0,
)
COUNTS = Counts(100, 100, 100, 0, 0, (), (), 0, 100)


def series(
    pool: KvPool | None = POOL,
    failed: Sequence[float] = (),
    **columns: Sequence[float],
) -> BackendSeries:
    """Ten samples, at 1 .. 10 s, unless fewer values are given."""
    values = {
        name: Series(
            np.array(range(1, len(column) + 1), dtype=np.float64),
            np.array(column, dtype=np.float64),
        )
        for name, column in columns.items()
    }
    return BackendSeries(
        backend="paged",
        source="scraper",
        values=values,
        pool=pool,
        failed_t_s=np.array(failed, dtype=np.float64),
        failures=("timeout",) if failed else (),
        missing=(),
    )


def figures(found: BackendSeries, kind: str = "vllm") -> MemoryFigures:
    memory = measure_memory(TableBuilder(CELL).build(), WINDOW, found, kind)
    assert memory is not None
    return memory


def admission(
    found: BackendSeries | None,
    info: BackendInfo | None = None,
    prompt: int = 512,
    counts: Counts = COUNTS,
) -> AdmissionVerdict:
    return judge_admission(info or paged_info(), prompt, WINDOW, counts, found)


FULL = [125 / 127] * 10  # 2 of 127 blocks free; a prompt of 512 needs 512 / 128 = 4


def test_d85_a_flat_device_says_nothing_and_the_usage_names_the_knee() -> None:
    flat = [73_000.0 * MIB] * 10
    found = series(
        device_used_bytes=flat,
        kv_usage_ratio=FULL,
        running=[25] * 10,
        waiting=[7] * 10,
    )
    memory = figures(found)
    assert memory.device_preallocated
    assert memory.device_used_bytes is not None
    assert memory.device_used_bytes.mean == memory.device_used_bytes.maximum
    assert admission(found).state == "kv_memory"
    assert not figures(found, "contiguous").device_preallocated


def test_d86_d93_a_missing_metric_is_none_not_zero() -> None:
    memory = figures(series(running=[1.0] * 10))
    assert memory.usage_ratio is None
    assert memory.used_bytes is None
    assert memory.preemptions is None
    assert memory.prefix_hit_ratio is None


def test_d93_no_sample_in_the_window_gives_no_figures() -> None:
    table = TableBuilder(CELL).build()
    assert measure_memory(table, WINDOW, series(running=[]), "vllm") is None
    assert measure_memory(table, WINDOW, None, "vllm") is None


def test_d92_a_counter_reset_is_no_negative_increase() -> None:
    # 100, 150, 20, 60: +50, reset to 20, +40 = 110
    memory = figures(series(running=[1.0] * 4, preemptions_total=[100, 150, 20, 60]))
    assert memory.preemptions == 110


def test_d95_one_sample_gives_no_increase_and_no_verdict() -> None:
    found = series(running=[1.0], waiting=[7.0], preemptions_total=[3.0], kv_usage_ratio=[1.0])
    assert figures(found).preemptions is None
    verdict = admission(found)
    assert verdict.state == "unknown"
    assert "1 sample in the window" in verdict.evidence


def test_d88_usage_is_a_ratio() -> None:
    memory = figures(series(running=[1.0] * 2, kv_usage_ratio=[0.90, 0.95]))
    assert memory.usage_ratio is not None
    assert memory.usage_ratio.maximum == 0.95
    assert memory.usage_ratio.mean == pytest.approx(0.925)


def test_d93_failed_scrapes_are_counted_as_gaps() -> None:
    memory = figures(series(running=[1.0] * 4, failed=[5.0, 6.0, 30.0]))
    # samples at 1..4, window 1..10: the gap from 4 to 10
    assert (memory.samples, memory.failed_scrapes, memory.longest_gap_s) == (4, 2, 6.0)


def test_bytes_per_token_come_from_the_server_never_from_the_config() -> None:
    # 16 MiB / (128 blocks x 128 tokens) = 1,024 B
    assert figures(series(running=[1.0] * 2)).pool_bytes_per_token == 1024
    held = figures(series(running=[1.0], kv_used_bytes=[2048.0 * 700], kv_tokens_held=[700.0]))
    assert held.used_bytes_per_token_held == pytest.approx(2048)


def test_prefix_hits_are_a_ratio_of_increases() -> None:
    memory = figures(
        series(
            running=[1.0] * 3,
            prefix_queries_total=[1000, 1500, 2000],
            prefix_hits_total=[500, 500, 520],
        )
    )
    # hits 20 of 1,000 looked up
    assert memory.prefix_hit_ratio == pytest.approx(0.02)


def test_client_tokens_held_count_prompt_and_received_between_first_and_last_token() -> None:
    # two requests: sent at 10, tokens at 10.5, 10.6, 10.7; and the same one second later
    table = build_tables(
        [record(CELL, 0), record(CELL, 1, t_intended_s=11.0, t_sent_s=11.0, t_end_s=11.7)]
    )[CELL]
    at = np.array([10.4, 10.55, 10.65, 10.75, 11.65])
    assert client_tokens_held(table, at).tolist() == [0, 513, 514, 0, 514]


def test_needed_is_at_most_used_in_a_run_whose_truth_is_known() -> None:
    from harness.analysis.run import analyse
    from tests.support.run_builder import build_run

    run = build_run(levels=(16,), min_requests=(100,))
    for cell in analyse(run.manifest, run.records, run.events, run.series).cells:
        memory = cell.memory
        assert memory is not None and memory.used_bytes is not None
        assert memory.client_tokens_held is not None
        assert memory.client_tokens_held.mean * 1024 <= memory.used_bytes.mean
        # 512 prompt tokens and some of the 128 of each running request
        assert memory.running is not None
        assert memory.client_tokens_held.mean <= memory.running.mean * 640


def test_memory_bound_needs_a_tenth_of_the_samples_and_two() -> None:
    def with_waiting(n: int, samples: int = 10) -> str:
        waiting = [1.0] * n + [0.0] * (samples - n)
        return admission(
            series(waiting=waiting, running=[25] * samples, kv_usage_ratio=[125 / 127] * samples)
        ).state

    assert [with_waiting(n) for n in (0, 1, 2)] == ["free", "free", "kv_memory"]
    # one sample of ten is a tenth, but one sample is no pattern; 2 of 9 are 22 %
    assert with_waiting(2, 9) == "kv_memory"


def test_waiting_with_enough_free_blocks_is_a_prefill_queue() -> None:
    # 20 blocks free, 4 needed, 16 of 256 seats taken: the step's token budget
    found = series(waiting=[3] * 10, running=[16] * 10, kv_usage_ratio=[107 / 127] * 10)
    verdict = admission(found)
    assert verdict.state == "compute"
    assert "20 or more blocks free" in verdict.evidence


def test_exactly_enough_free_blocks_are_enough() -> None:
    # the next prompt needs 4 blocks: 4 free are enough, 3 are not
    def with_free(free: int) -> str:
        usage = [(127 - free) / 127] * 10
        return admission(series(waiting=[3] * 10, running=[24] * 10, kv_usage_ratio=usage)).state

    assert (with_free(4), with_free(3)) == ("compute", "kv_memory")


def test_all_seats_taken_is_the_schedulers_limit() -> None:
    found = series(waiting=[16] * 10, running=[16] * 10, kv_usage_ratio=FULL)
    assert admission(found, paged_info(max_num_seqs=16)).state == "scheduler_limit"
    # an unstated limit shows as a constant number running
    free = series(waiting=[16] * 10, running=[16] * 10, kv_usage_ratio=[0.5] * 10)
    assert admission(free, paged_info(max_num_seqs=None)).state == "scheduler_limit"
    moving = series(waiting=[3] * 10, running=[14, 16] * 5, kv_usage_ratio=[0.5] * 10)
    assert admission(moving, paged_info(max_num_seqs=None)).state == "compute"


def test_e112_rising_preemptions_are_memory() -> None:
    found = series(
        waiting=[0] * 10,
        running=[24] * 10,
        kv_usage_ratio=[1.0] * 10,
        preemptions_total=[5, 5, 6, *[7] * 7],
    )
    verdict = admission(found)
    assert verdict.state == "kv_memory"
    assert verdict.evidence == "2 preemptions inside the window"
    one = series(waiting=[0] * 10, running=[24] * 10, preemptions_total=[5, *[6] * 9])
    assert admission(one).evidence == "1 preemption inside the window"


def test_the_contiguous_server_says_itself_who_waits_for_kv() -> None:
    info = static_info()
    pool = KvPool(total_bytes=16 * MIB)
    kv = series(pool, waiting=[8] * 10, waiting_for_kv=[8] * 10, running=[8] * 10)
    turn = series(pool, waiting=[2] * 10, waiting_for_kv=[0] * 10, running=[4] * 10)
    assert admission(kv, info).state == "kv_memory"
    assert admission(turn, info).state == "compute"


def test_refusals_while_others_wait_for_kv_are_memory() -> None:
    info = static_info()
    pool = KvPool(total_bytes=16 * MIB)
    error = ErrorText("rejected", 503, "the waiting queue is full", 9)
    counts = Counts(100, 100, 91, 9, 0, (("rejected", 9),), (error,), 0, 100)
    once = series(pool, waiting=[1, *[0] * 9], waiting_for_kv=[1, *[0] * 9], running=[8] * 10)
    assert admission(once, info, counts=counts).state == "kv_memory"
    never = series(pool, waiting=[0] * 10, waiting_for_kv=[0] * 10, running=[8] * 10)
    assert admission(never, info, counts=counts).state == "free"


def test_d96_without_metrics_nothing_is_said() -> None:
    assert admission(None).state == "unknown"
    assert admission(series(running=[1.0] * 10)).state == "unknown"
    # requests wait, but no pool is known
    found = series(pool=None, waiting=[5] * 10, running=[16] * 10)
    assert admission(found, paged_info(num_blocks=None)).state == "unknown"
