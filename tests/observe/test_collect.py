from __future__ import annotations

import numpy as np
import pytest

from harness.observe import names as n
from harness.observe.collect import all_series, backend_series
from harness.observe.process_memory import TreeMemory, exposition
from harness.records import Scrape
from harness.rundir import RunDir
from tests.observe.support import (
    CONTIGUOUS,
    IDLE,
    LOAD_A,
    LOAD_B,
    backend,
    fixture,
    manifest,
    write_scrapes,
)

BLOCK_BYTES = 16 * 2**20 // 128


def failed(t_s: float, error: str) -> Scrape:
    return Scrape(t_s=t_s, took_s=0.1, error=error)


def test_bytes_of_a_recorded_vllm_under_load(run: RunDir) -> None:
    write_scrapes(run, "paged", [fixture(IDLE), fixture(LOAD_A), fixture(LOAD_B)])
    found = backend_series(run, backend(), manifest())
    assert found.source == "scraper"
    assert found.available
    assert (found.missing, found.failures) == ((), ())
    # 25 requests of 640 tokens are 5 blocks of 128 each: 125 of 127 usable
    assert found.values[n.KV_USED_BYTES].v.tolist() == pytest.approx(
        [0, 125 * BLOCK_BYTES, 125 * BLOCK_BYTES]
    )
    assert found.values[n.KV_RESERVED_BYTES].v.tolist() == [128 * BLOCK_BYTES] * 3
    assert found.values[n.KV_BUDGET_BYTES].v.tolist() == [128 * BLOCK_BYTES] * 3
    assert found.values[n.RUNNING].v.tolist() == [0, 25, 25]
    assert found.values[n.WAITING].v.tolist() == [0, 7, 7]
    assert found.values[n.GENERATION_TOKENS_TOTAL].increase(1, 2) == 11110 - 5235
    # vLLM does not say how many wait for memory
    assert found.get(n.WAITING_FOR_KV) is None
    assert n.PROCESS_RSS_BYTES not in found.values


def test_a_contiguous_server_states_its_bytes_itself(run: RunDir) -> None:
    write_scrapes(run, "contiguous", [fixture(CONTIGUOUS)])
    info = backend("contiguous", "contiguous", mode="static")
    found = backend_series(run, info, manifest(info))
    assert found.missing == ()
    assert found.pool is not None
    assert (found.pool.total_bytes, found.pool.num_blocks) == (16 * 2**20, None)
    # 8 slots of 2,048 tokens of 1,024 B
    assert found.values[n.KV_RESERVED_BYTES].v.tolist() == [8 * 2048 * 1024]


def test_d85_a_pre_allocated_device_is_flat_while_usage_tells(run: RunDir) -> None:
    pages = [
        f"vllm:kv_cache_usage_perc {usage}\nvllm:num_requests_waiting {waiting}\n"
        for usage, waiting in ((0.02, 0), (0.5, 0), (0.98, 40))
    ]
    write_scrapes(run, "paged", pages)
    write_scrapes(run, "dcgm", ['DCGM_FI_DEV_FB_USED{UUID="GPU-a"} 73000\n'] * 3)
    info = backend(gpu_uuids=("GPU-a",))
    found = backend_series(run, info, manifest(info))
    assert found.values[n.DEVICE_USED_BYTES].v.tolist() == [73000 * 2**20] * 3
    assert found.values[n.KV_USAGE_RATIO].v.tolist() == [0.02, 0.5, 0.98]
    assert found.values[n.WAITING].maximum(0, 9) == 40


def test_d86_what_a_page_lacks_is_missing_and_not_zero(run: RunDir) -> None:
    write_scrapes(run, "paged", ["vllm:num_requests_running 3\n"])
    found = backend_series(run, backend(), manifest())
    assert n.KV_USAGE_RATIO in found.missing
    assert n.PREEMPTIONS_TOTAL in found.missing
    assert n.RUNNING not in found.missing
    assert found.get(n.KV_USAGE_RATIO) is None
    assert found.pool is None


def test_d93_a_failed_scrape_is_a_gap_and_not_a_zero(run: RunDir) -> None:
    page = "vllm:num_requests_running {}\n"
    write_scrapes(
        run,
        "paged",
        [page.format(4), failed(1.0, "no answer within 0.8 s"), page.format(6), failed(3.0, "x")],
    )
    found = backend_series(run, backend(), manifest())
    running = found.values[n.RUNNING]
    assert (running.t_s.tolist(), running.v.tolist()) == ([0.0, 2.0], [4.0, 6.0])
    assert running.mean(0, 9) == 5
    assert found.failed_t_s.tolist() == [1.0, 3.0]
    assert found.failures == ("no answer within 0.8 s", "x")
    assert found.n_scrapes == 2


def test_d95_one_scrape_in_a_window_tells_no_rate(run: RunDir) -> None:
    write_scrapes(run, "paged", [f"vllm:generation_tokens_total {v}\n" for v in (0, 500, 900)])
    tokens = backend_series(run, backend(), manifest()).values[n.GENERATION_TOKENS_TOTAL]
    assert tokens.increase(0.5, 1.5) is None
    assert tokens.increase(0.5, 2.5) == 400


def test_d95_sums_and_counts_serve_where_a_quantile_is_nan(run: RunDir) -> None:
    page = (
        'vllm:time_to_first_token_seconds{quantile="0.5"} NaN\n'
        "vllm:time_to_first_token_seconds_sum 3\nvllm:time_to_first_token_seconds_count 2\n"
    )
    write_scrapes(run, "paged", [page])
    found = backend_series(run, backend(), manifest())
    assert found.values[n.TTFT_SECONDS_SUM].v.tolist() == [3]
    assert found.values[n.TTFT_SECONDS_COUNT].v.tolist() == [2]


@pytest.mark.parametrize(
    ("scrape", "reason"),
    [
        (Scrape(t_s=0, took_s=0, status=200, text=""), "empty page"),
        (Scrape(t_s=0, took_s=0, status=500, error="HTTP 500"), "HTTP 500"),
        (Scrape(t_s=0, took_s=0, status=500, text="vllm:num_requests_running 3\n"), "HTTP 500"),
        (
            Scrape(t_s=0, took_s=0, status=200, text="<html>x</html>"),
            "no Prometheus text, starts with '<html>x</html>'",
        ),
    ],
    ids=["empty", "500", "500 with a page", "html"],
)
def test_d96_metrics_unavailable_is_a_state(run: RunDir, scrape: Scrape, reason: str) -> None:
    write_scrapes(run, "paged", [scrape])
    found = backend_series(run, backend(), manifest())
    assert not found.available
    assert found.values == {}
    assert found.failures == (reason,)
    # nothing was read, so nothing is known to be missing
    assert found.missing == ()
    assert found.failed_t_s.tolist() == [0.0]


def test_a_backend_that_was_never_scraped(run: RunDir) -> None:
    found = backend_series(run, backend(), manifest())
    assert not found.available
    assert found.failed_t_s.dtype == np.float64


def test_an_unknown_server_has_no_series_and_misses_nothing(run: RunDir) -> None:
    write_scrapes(run, "other", ["anything 1\n", "<html>"])
    info = backend("other", "openai", mode="default")
    found = backend_series(run, info, manifest(info))
    assert (found.n_scrapes, dict(found.values), found.missing) == (1, {}, ())
    assert found.failed_t_s.tolist() == [1.0]


def test_the_pool_is_completed_by_the_budget_it_was_started_with(run: RunDir) -> None:
    page = (
        'vllm:cache_config_info{block_size="16",kv_cache_memory_bytes="None",'
        'num_gpu_blocks="100"} 1\nvllm:kv_cache_usage_perc 1.0\n'
    )
    write_scrapes(run, "paged", [page])
    known = backend_series(run, backend(kv_budget_bytes=100_000), manifest())
    # 99 usable blocks of 1,000 B
    assert known.values[n.KV_USED_BYTES].v.tolist() == pytest.approx([99_000])
    unknown = backend_series(run, backend(kv_bytes_per_token=64), manifest())
    assert n.KV_USED_BYTES not in unknown.values
    assert n.KV_RESERVED_BYTES not in unknown.values
    assert unknown.values[n.KV_USAGE_RATIO].v.tolist() == [1.0]


def test_the_process_tree_counts_and_not_what_one_process_says(run: RunDir) -> None:
    write_scrapes(run, "contiguous", [fixture(CONTIGUOUS)] * 2)
    write_scrapes(
        run,
        "contiguous.process",
        [exposition(TreeMemory(900, 2)), failed(1.0, "process 7 has ended")],
    )
    info = backend("contiguous", "contiguous", mode="static")
    found = backend_series(run, info, manifest(info))
    assert found.values[n.PROCESS_RSS_BYTES].v.tolist() == [900]
    assert found.failures == ("process 7 has ended",)
    # the page itself could be read both times
    assert found.failed_t_s.tolist() == []


def test_all_series_has_every_backend_and_reads_the_manifest(run: RunDir) -> None:
    run.write_manifest(manifest(backend(), backend("b", "contiguous")))
    write_scrapes(run, "b", [fixture(CONTIGUOUS)])
    found = all_series(run)
    assert list(found) == ["paged", "b"]
    assert (found["paged"].available, found["b"].available) == (False, True)
    assert backend_series(run, backend()).available is False
