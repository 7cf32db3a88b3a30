"""What would move a memory knee: each line's formula by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.movers import Situation, movers
from harness.analysis.reconcile_theory import config_theory
from harness.analysis.run import analyse
from harness.observe.series import KvPool
from tests.support.fake_server import paged_info, static_info
from tests.support.run_builder import build_run

MIB = 2**20
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 260,
    "max_position_embeddings": 16384,
    "torch_dtype": "bfloat16",
}
POOL = KvPool(total_bytes=16 * MIB, num_blocks=128, block_size=128, utilization=0.9, dtype="auto")


def situation(**changes: object) -> Situation:
    info = paged_info(gpu_uuids=("GPU-1",))
    facts: dict[str, object] = {
        "info": info,
        "lengths": {(512, 128): 10},
        "fits": "worst",
        "pool": POOL,
        "theory": config_theory(CONFIG, info),
        "device_bytes": 1024 * MIB,
    }
    return Situation(**{**facts, **changes})  # type: ignore[arg-type]


def test_each_change_by_hand() -> None:
    fp8, half, share, ranks = movers(situation())
    assert {mover.old for mover in (fp8, half, share, ranks)} == {25}
    # 256 blocks, 255 / 5 = 51
    assert (fp8.new, "128 blocks x 16 / 8) = 256 blocks" in fp8.working) == (51, True)
    # 512 + 64 take 5 blocks too: 25
    assert (half.new, half.working) == (25, "512 + 64 tokens in place of 512 + 128")
    # 0.05 x 1,024 MiB = 53,687,091 B = 409 blocks of 131,072 B more: 536 / 5 = 107
    assert share.new == (128 + 409 - 1) // 5 == 107
    assert "53,687,091 B more" in share.working
    # one KV head of two on each rank: half the bytes, 256 blocks
    assert ranks.new == 51
    assert "512 of 1,024 B per token on each rank" in ranks.working


def test_half_the_output_of_a_pool_in_small_blocks() -> None:
    info = paged_info(block_size=16, num_blocks=1025)
    half = movers(situation(info=info, lengths={(512, 512): 1}))[1]
    # 1,024 / 64 = 16, and 1,024 / 48 = 21
    assert (half.old, half.new) == (16, 21)


def test_the_steady_state_moves_too() -> None:
    info = paged_info(block_size=16, num_blocks=1025)
    now = situation(info=info, lengths={(512, 512): 1})
    worst, steady = movers(now)[0], movers(replace(now, fits="steady"))[0]
    assert steady.old > worst.old
    assert steady.new is not None
    assert worst.new is not None
    assert steady.new > worst.new > worst.old


@pytest.mark.parametrize(
    ("place", "changes", "reason"),
    [
        (0, {"info": paged_info(dtype=None)}, "the cache's dtype is not known"),
        (0, {"pool": replace(POOL, dtype="fp8")}, "already"),
        (0, {"info": static_info()}, "no fp8 cache"),
        (1, {"lengths": {(512, 1): 1}}, "cannot be halved"),
        (2, {"info": paged_info()}, "given in bytes"),
        (2, {"device_bytes": None}, "the GPU's whole memory is not on record"),
        (2, {"pool": replace(POOL, utilization=None)}, "does not state its utilization"),
        (2, {"pool": replace(POOL, utilization=0.97)}, "0.97 already"),
        (2, {"pool": replace(POOL, total_bytes=None)}, "bytes of a block are not known"),
        (3, {"theory": None}, "config is not known"),
        (3, {"info": static_info()}, "no tensor parallelism"),
    ],
)
def test_what_is_not_known_is_absent_with_its_reason(
    place: int, changes: dict[str, object], reason: str
) -> None:
    found = movers(situation(**changes))[place]
    assert found.new is None
    assert reason in found.working


def test_a_single_kv_head_is_not_split() -> None:
    info = paged_info(gpu_uuids=("GPU-1",))
    one = config_theory({**CONFIG, "num_key_value_heads": 1}, info)
    found = movers(situation(theory=one))[3]
    assert found.new is None
    assert "not split" in found.working


def test_only_a_memory_knee_has_them() -> None:
    run = build_run(levels=(1, 4), min_requests=(20, 100))
    verdicts = analyse(run.manifest, run.records, run.events, run.series).verdicts
    assert [verdict.movers for verdict in verdicts] == [(), ()]
    run = build_run()
    verdicts = analyse(run.manifest, run.records, run.events, run.series).verdicts
    assert [len(verdict.movers) for verdict in verdicts] == [4, 4]
