"""Requests that fit: the arithmetic stands beside every expectation."""

from __future__ import annotations

from harness.kv.capacity import (
    dynamic_capacity,
    is_one_group,
    paged_capacity,
    predicted_capacity,
    region_capacity,
    static_capacity,
)
from harness.manifest import BackendInfo

BUDGET = 16 * 2**20  # 16 MiB = 16,777,216 B
TINY = 1024  # B per token: 4 layers x 2 KV heads x 32 x 2 (K, V) x 2 B


def paged(**changes: object) -> BackendInfo:
    facts: dict[str, object] = {
        "name": "paged",
        "url": "http://127.0.0.1:8000",
        "kind": "vllm",
        "mode": "paged",
        "model": "tiny",
        "num_blocks": 128,
        "block_size": 128,
        "max_model_len": 2048,
    }
    return BackendInfo(**(facts | changes))  # type: ignore[arg-type]


def contiguous(mode: str, **changes: object) -> BackendInfo:
    facts: dict[str, object] = {
        "kind": "contiguous",
        "mode": mode,
        "num_blocks": None,
        "block_size": None,
        "kv_budget_bytes": BUDGET,
        "kv_bytes_per_token": TINY,
    }
    return paged(**(facts | changes))


def test_a_paged_pool_of_the_tiny_model_holds_25() -> None:
    # 16,777,216 / (128 x 1,024) = 128 blocks, 127 usable; ceil(640 / 128) = 5; 127 // 5 = 25
    # (a real vLLM ran exactly 25 of 32, with 7 waiting)
    assert BUDGET // (128 * TINY) == 128
    capacity = paged_capacity(num_blocks=128, block_size=128, prompt_tokens=512, output_tokens=128)
    assert capacity.requests == 25
    assert capacity.derivation == (
        "usable blocks = 128 - 1 null block = 127",
        "blocks per request = ceil((512 + 128) tokens / 128 tokens per block) = 5",
        "requests = floor(127 / 5) = 25",
    )


def test_the_null_block_decides_at_an_exact_multiple() -> None:
    # 125 blocks would hold 25 x 5, but only 124 are usable: 124 // 5 = 24
    capacity = paged_capacity(num_blocks=125, block_size=128, prompt_tokens=512, output_tokens=128)
    assert capacity.requests == 24


def test_c80_whole_requests_by_blocks() -> None:
    # 1,000 tokens in blocks of 16: ceil(62.5) = 63 blocks = 1,008 tokens.
    # 127,626 blocks / 63 = 2,025.8 -> 2,025 whole requests, where plain division of tokens
    # gives 127,626 x 16 / 1,000 = 2,042
    capacity = paged_capacity(
        num_blocks=127_626 + 1, block_size=16, prompt_tokens=900, output_tokens=100
    )
    assert capacity.requests == 2025
    assert 127_626 * 16 // 1000 == 2042


def test_e111_safe_concurrency_of_77088_tokens() -> None:
    # 77,088 / 16 = 4,818 blocks; 1,000 tokens take 63; 4,818 // 63 = 76 = 77,088 // 1,008
    capacity = paged_capacity(
        num_blocks=4818 + 1, block_size=16, prompt_tokens=500, output_tokens=500
    )
    assert capacity.requests == 76 == 77_088 // 1008


def test_static_slots_pay_for_the_whole_context() -> None:
    # 2,048 x 1,024 = 2,097,152 B per slot; 16,777,216 / 2,097,152 = 8
    capacity = static_capacity(kv_budget_bytes=BUDGET, bytes_per_token=TINY, max_model_len=2048)
    assert capacity.requests == 8
    assert capacity.derivation == (
        "bytes per slot = 2,048 tokens x 1,024 B = 2,097,152 B",
        "slots = floor(16,777,216 B / 2,097,152 B) = 8",
    )


def test_dynamic_pays_for_what_is_promised() -> None:
    # 640 x 1,024 = 655,360 B; 16,777,216 / 655,360 = 25.6 -> 25
    capacity = dynamic_capacity(
        kv_budget_bytes=BUDGET, bytes_per_token=TINY, prompt_tokens=512, output_tokens=128
    )
    assert capacity.requests == 25


def test_regions_pay_for_what_they_reserve() -> None:
    # 16,777,216 / 1,024 = 16,384 tokens; 640 -> 25.6; 1,024 -> 16; 512 + 600 = 1,112 would
    # round up to 2,048 and stops at max_model_len 1,500: 10.9
    capacity = region_capacity(
        reserve="exact",
        kv_budget_bytes=BUDGET,
        bytes_per_token=TINY,
        prompt_tokens=512,
        output_tokens=128,
        max_model_len=2048,
    )
    assert capacity.requests == 25
    assert capacity.derivation == (
        "arena = floor(16,777,216 B / 1,024 B per token) = 16,384 tokens",
        "region per request = 512 + 128 = 640 tokens",
        "requests = floor(16,384 / 640) = 25",
    )
    capacity = region_capacity(
        reserve="pow2",
        kv_budget_bytes=BUDGET,
        bytes_per_token=TINY,
        prompt_tokens=512,
        output_tokens=600,
        max_model_len=1500,
    )
    assert capacity.requests == 10
    assert capacity.derivation[1] == (
        "region per request = the next power of two of 512 + 600, at most 1,500 = 1,500 tokens"
    )


def test_the_scheduler_limit_is_a_step_of_its_own() -> None:
    capacity = static_capacity(
        kv_budget_bytes=BUDGET, bytes_per_token=TINY, max_model_len=2048, max_num_seqs=4
    )
    assert capacity.requests == 4
    assert capacity.derivation[-1] == "requests = min(8, max_num_seqs 4) = 4"


def test_a_budget_below_one_request_holds_none() -> None:
    assert static_capacity(kv_budget_bytes=1, bytes_per_token=1, max_model_len=2).requests == 0
    tiny_pool = paged_capacity(num_blocks=1, block_size=16, prompt_tokens=1, output_tokens=1)
    assert tiny_pool.requests == 0


def test_predicted_by_kind_and_mode() -> None:
    cases = [
        (paged(), 25),
        (paged(max_num_seqs=16), 16),
        (contiguous("static"), 8),
        (contiguous("dynamic"), 25),
        (contiguous("dynamic/none"), 1),
        (contiguous("static/none"), 1),
        # as runs of earlier versions have it
        (contiguous("static-batching-none"), 1),
        # 16,384 tokens: regions of 640 and of 1,024
        (contiguous("static/exact"), 25),
        (contiguous("static/pow2"), 16),
        (contiguous("static/exact/none"), 1),
        (contiguous("static/exact", max_num_seqs=20), 20),
        # a batch states its size as max_num_seqs
        (contiguous("static/batch", max_num_seqs=16), 8),
        (contiguous("static/pow2/batch", max_num_seqs=16), 16),
        (contiguous("dynamic/batch", max_num_seqs=16), 16),
        (contiguous("dynamic/batch", max_num_seqs=64), 25),
    ]
    for info, expected in cases:
        capacity = predicted_capacity(info, 512, 128)
        assert capacity is not None
        assert capacity.requests == expected, info


def test_a_missing_fact_predicts_nothing() -> None:
    missing = [
        paged(num_blocks=None),
        paged(block_size=None),
        contiguous("static", kv_budget_bytes=None),
        contiguous("static", max_model_len=None),
        contiguous("dynamic", kv_bytes_per_token=None),
        contiguous("other"),
        contiguous("static/exact", max_model_len=None),
        contiguous("static/other"),
        paged(kind="openai", mode="default"),
    ]
    for info in missing:
        assert predicted_capacity(info, 512, 128) is None, info


def test_a_request_beyond_the_context_never_fits() -> None:
    capacity = predicted_capacity(paged(), 2000, 128)
    assert capacity is not None
    assert capacity.requests == 0
    assert capacity.derivation == ("2,128 tokens per request > max_model_len 2,048: none fits",)


def test_d97_a_pool_of_one_group_states_its_blocks() -> None:
    def one(stated: int, longest: int | None = 2048, blocks: int = 128, engines: int = 1) -> bool:
        return is_one_group(
            num_blocks=blocks,
            block_size=128,
            stated_tokens=stated,
            max_model_len=longest,
            engines=engines,
        )

    # recorded from vLLM 0.32.0: 128 blocks x 128 tokens = 16,384
    assert one(16_384) and one(16_384, None)
    # 2,050 tokens take 17 blocks: 128 / 17 x 2,050 = 15,435.3, cut to 15,435
    assert one(15_435, 2050)
    assert not one(15_435, 2048) and not one(15_435, None)
    # shorter than a block: 128 / 1 x 100 = 12,800
    assert one(12_800, 100)
    # two engines, each cut: 2 x 15,435 = 30,870 of 2 x 15,435.3 = 30,870.6
    assert one(30_870, 2050, 256, 2)


def test_d97_a_pool_of_several_groups_states_fewer_or_more() -> None:
    # recorded from vLLM 0.32.0, Gemma-3-like: 512 blocks; a request of 4,096 takes 32 in the
    # full group and 19 in each of 5 with a window of 256 (and 2,048 tokens a step):
    # 512 / (32 + 5 x 19) x 4,096 = 16,513.0, not 512 x 128 = 65,536
    assert int(512 / (32 + 5 * 19) * 4096) == 16_513
    for stated in (16_513, 110_376):  # windows only: 512 / 19 x 4,096 = 110,376
        assert not is_one_group(
            num_blocks=512, block_size=128, stated_tokens=stated, max_model_len=4096
        )
