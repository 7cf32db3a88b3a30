from __future__ import annotations

import pytest

from harness.observe import names as n
from harness.observe.aggregate import canonical_values, kv_pool, used_bytes
from harness.observe.backends import CONTIGUOUS, KINDS, VLLM, backend_kind, detect_kind
from harness.observe.exposition import PageReader
from harness.observe.series import KvPool
from tests.observe.support import CONTIGUOUS as CONTIGUOUS_PAGE
from tests.observe.support import DYNAMIC, IDLE, LOAD_A, fixture


def values(text: str, kind: str = "vllm") -> dict[str, float]:
    row = backend_kind(kind)
    return canonical_values(row, PageReader(row.sample_names).read(text))


def pool(text: str) -> KvPool | None:
    assert VLLM.pool is not None
    return kv_pool(VLLM.pool, PageReader(VLLM.sample_names).read(text))


#: every name that the module states
CANONICAL = {value for name, value in vars(n).items() if name.isupper()}


def test_rows_use_canonical_names_once() -> None:
    for row in KINDS.values():
        found = [metric.canonical for metric in row.metrics]
        assert len(found) == len(set(found))
        assert set(found) <= CANONICAL


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (fixture(IDLE), "vllm"),
        (fixture(CONTIGUOUS_PAGE), "contiguous"),
        ("process_cpu_seconds_total 1\n", "openai"),
        ("# HELP vllm:x only talked about\n", "openai"),
        ("", "openai"),
        ("<html>", "openai"),
    ],
)
def test_kind_is_told_by_the_page(text: str, kind: str) -> None:
    assert detect_kind(text) == kind


def test_an_unknown_kind_has_no_metrics() -> None:
    assert backend_kind("something").metrics == ()


@pytest.mark.parametrize("name", [IDLE, LOAD_A])
def test_a_recorded_vllm_page_has_all_that_is_required(name: str) -> None:
    assert set(VLLM.required) <= values(fixture(name)).keys()


@pytest.mark.parametrize("name", [CONTIGUOUS_PAGE, DYNAMIC])
def test_a_recorded_contiguous_page_has_all_that_is_required(name: str) -> None:
    found = values(fixture(name), "contiguous")
    assert set(CONTIGUOUS.required) <= found.keys()
    assert n.CUDA_ALLOCATED_BYTES not in found


def test_slots_and_outcomes_of_the_contiguous_server() -> None:
    static = values(fixture(CONTIGUOUS_PAGE), "contiguous")
    # of six outcomes, 8 requests ended by their length
    assert (static[n.SLOTS], static[n.REQUESTS_TOTAL]) == (8, 8)
    assert (static[n.RUNNING], static[n.WAITING], static[n.WAITING_FOR_KV]) == (8, 24, 24)
    dynamic = values(fixture(DYNAMIC), "contiguous")
    assert n.SLOTS not in dynamic
    # 25 requests promised 512 + 128 tokens of 1,024 B
    assert dynamic[n.KV_RESERVED_BYTES] == 25 * 640 * 1024
    assert dynamic[n.KV_USED_BYTES] <= dynamic[n.KV_RESERVED_BYTES]


def test_contiguous_states_torch_memory_on_a_gpu() -> None:
    text = (
        'contiguous_cuda_allocated_bytes{model="m"} 15006\n'
        'contiguous_cuda_reserved_bytes{model="m"} 16726\n'
        'contiguous_cuda_max_allocated_bytes{model="m"} 15500\n'
    )
    found = values(text, "contiguous")
    assert found[n.CUDA_ALLOCATED_BYTES] == 15006
    assert found[n.CUDA_RESERVED_BYTES] == 16726
    assert found[n.CUDA_MAX_ALLOCATED_BYTES] == 15500


@pytest.mark.parametrize(
    "text",
    [
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\n',
        'vllm:kv_cache_usage_perc{engine="0"} 0.5\n',
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n',
    ],
    ids=["old", "new", "both"],
)
def test_d86_a_renamed_metric_counts_once(text: str) -> None:
    assert values(text)[n.KV_USAGE_RATIO] == 0.5


def test_d86_the_new_name_wins() -> None:
    text = "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.9\n"
    assert values(text)[n.KV_USAGE_RATIO] == 0.9


def test_d86_missing_is_a_missing_key() -> None:
    assert values("vllm:num_requests_running 3\n") == {n.RUNNING: 3}


def test_d87_old_names_without_a_successor_are_not_read() -> None:
    text = (
        "vllm:num_requests_swapped 4\n"
        "vllm:cpu_cache_usage_perc 0.3\n"
        "vllm:gpu_prefix_cache_hit_rate 0.7\n"
        "vllm:request_time_per_output_token_seconds_sum 9\n"
        "vllm:request_time_per_output_token_seconds_count 3\n"
    )
    assert values(text) == {}


def test_d87_renamed_counters_are_read_by_either_name() -> None:
    old = (
        "vllm:gpu_prefix_cache_queries_total 100\nvllm:gpu_prefix_cache_hits_total 25\n"
        "vllm:time_per_output_token_seconds_sum 6\nvllm:time_per_output_token_seconds_count 2\n"
    )
    new = (
        "vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 25\n"
        "vllm:inter_token_latency_seconds_sum 6\nvllm:inter_token_latency_seconds_count 2\n"
    )
    assert values(old) == values(new) == values(old + new)
    assert values(new)[n.PREFIX_HITS_TOTAL] / values(new)[n.PREFIX_QUERIES_TOTAL] == 0.25


def test_d88_usage_is_a_ratio_although_its_name_says_percent() -> None:
    # 125 of the 127 usable blocks
    assert values(fixture(LOAD_A))[n.KV_USAGE_RATIO] == pytest.approx(125 / 127, abs=1e-12)


def test_d89_of_several_api_servers_the_one_that_knows_counts() -> None:
    text = "".join(
        f'vllm:kv_cache_usage_perc{{engine="0",pid="{pid}"}} {0.653 if pid == 3 else 0.0}\n'
        f'vllm:num_requests_running{{engine="0",pid="{pid}"}} {5 if pid == 3 else 0}\n'
        for pid in range(8)
    )
    found = values(text)
    assert found[n.KV_USAGE_RATIO] == found[n.KV_USAGE_RATIO_MAX] == 0.653
    assert found[n.RUNNING] == 5


def test_d89_counters_of_several_processes_add_up() -> None:
    text = "".join(
        f'vllm:generation_tokens_total{{engine="0",pid="{pid}"}} {100 * pid}\n' for pid in (1, 2)
    )
    assert values(text)[n.GENERATION_TOKENS_TOTAL] == 300


def test_d90_engines_add_up_and_their_usage_does_not() -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 5\n'
        'vllm:num_requests_waiting{engine="0"} 2\nvllm:num_requests_waiting{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        'vllm:time_to_first_token_seconds_sum{engine="0"} 1.5\n'
        'vllm:time_to_first_token_seconds_sum{engine="1"} 2.5\n'
        'vllm:time_to_first_token_seconds_count{engine="0"} 3\n'
        'vllm:time_to_first_token_seconds_count{engine="1"} 5\n'
    )
    found = values(text)
    assert (found[n.RUNNING], found[n.WAITING]) == (3 + 5, 2 + 4)
    assert found[n.KV_USAGE_RATIO] == pytest.approx((0.2 + 0.6) / 2)
    assert found[n.KV_USAGE_RATIO_MAX] == 0.6
    assert (found[n.TTFT_SECONDS_SUM], found[n.TTFT_SECONDS_COUNT]) == (1.5 + 2.5, 3 + 5)


def test_d90_two_engines_as_the_field_case_has_them() -> None:
    # running {3, 5} -> 8; KV usage {0.4, 0.4} -> 0.4 in mean and maximum, never 0.8
    text = "".join(
        f'vllm:num_requests_running{{engine="{engine}"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}"}} 0.4\n'
        for engine, running in ((0, 3), (1, 5))
    )
    found = values(text)
    assert found[n.RUNNING] == 8
    assert (found[n.KV_USAGE_RATIO], found[n.KV_USAGE_RATIO_MAX]) == (0.4, 0.4)


def test_d101_generated_tokens_include_unfinished_requests() -> None:
    # at the moment of the recording 25 requests of 128 tokens had finished (3,200) and
    # 25 more were under way
    text = fixture(LOAD_A)
    assert 'vllm:request_generation_tokens_sum{engine="0",model_name="tiny"} 3200.0' in text
    assert values(text)[n.GENERATION_TOKENS_TOTAL] == 5235


def test_d97_the_pool_is_read_from_labels() -> None:
    assert pool(fixture(IDLE)) == KvPool(
        total_bytes=16 * 2**20,
        num_blocks=128,
        block_size=128,
        size_tokens=128 * 128,
        utilization=0.92,
        dtype="auto",
    )


def test_d97_a_hybrid_model_holds_what_it_states_and_not_blocks_times_size() -> None:
    text = (
        'vllm:cache_config_info{block_size="16",engine="0",kv_cache_memory_bytes="None",'
        'kv_cache_size_tokens="9000",num_gpu_blocks="1000"} 1.0\n'
    )
    found = pool(text)
    assert found is not None
    assert found.size_tokens == 9000 != 1000 * 16
    assert found.total_bytes is None


def test_d97_an_old_page_states_no_tokens() -> None:
    found = pool('vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\n')
    assert found == KvPool(num_blocks=1000, block_size=16)


def test_the_pool_of_two_engines() -> None:
    # vLLM has added the blocks up already (2 x 128); bytes and tokens are one engine's
    text = "".join(
        f'vllm:cache_config_info{{block_size="128",engine="{engine}",'
        'kv_cache_memory_bytes="16777216",kv_cache_size_tokens="16384",num_gpu_blocks="256"} 1\n'
        for engine in (0, 1)
    )
    found = pool(text)
    assert found == KvPool(
        total_bytes=2 * 2**24, num_blocks=256, block_size=128, size_tokens=2 * 16384, engines=2
    )
    # mean usage 0.5 of 254 usable blocks of 131,072 B
    assert used_bytes(found, 0.5) == 127 * 131072


def test_no_info_metric_no_pool() -> None:
    assert pool("vllm:num_requests_running 1\n") is None


def test_used_bytes_of_a_pool_of_unknown_size_are_unknown() -> None:
    assert used_bytes(KvPool(num_blocks=128), 0.5) is None


def test_one_metric_of_several_quantities_is_read_by_its_label() -> None:
    text = "".join(
        f'contiguous_kv_part_bytes{{model="tiny",part="{part}"}} {size}\n'
        for part, size in (("payload", 256), ("scales", 32), ("residual", 1024), ("full", 7))
    )
    found = values(text, "contiguous")
    assert [found[name] for name in (n.KV_PAYLOAD_BYTES, n.KV_SCALES_BYTES)] == [256, 32]
    assert [found[name] for name in (n.KV_RESIDUAL_BYTES, n.KV_FULL_BYTES)] == [1024, 7]
    # a cache that is not quantized has none of the others
    only_full = values('contiguous_kv_part_bytes{model="tiny",part="full"} 7\n', "contiguous")
    assert n.KV_SCALES_BYTES not in only_full
