"""vLLM's blocks and groups: the arithmetic stands beside every expectation.

Where a test says "as started", the figures are those of a real vLLM 0.32 on the CPU (see
docs/verify-engines.md).
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import OptionError
from harness.kv.dtypes import resolve
from harness.kv.engine import Engine, EngineOptions, resolve_engine
from harness.kv.paged import PagedLayout, paged_layout
from harness.kv.spec import ModelSpec, read_spec
from tests.kv.models import spec


def laid_out(model: ModelSpec, **options: Any) -> tuple[PagedLayout, Engine]:
    engine = resolve_engine(model, EngineOptions(**options))
    return paged_layout(model, resolve("auto", model.dtype or "bfloat16"), engine), engine


def hybrid(full: int, sliding: int, window: int = 64) -> ModelSpec:
    """A Gemma-3-like model of the given numbers of layers: 1 KV head of 64, bf16."""
    types = ["full_attention"] * full + ["sliding_attention"] * sliding
    return read_spec(
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": full + sliding,
            "hidden_size": 128,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "sliding_window": window,
            "layer_types": types,
            "max_position_embeddings": 4096,
            "torch_dtype": "bfloat16",
        }
    )


def test_one_kind_of_layer_is_one_group() -> None:
    layout, engine = laid_out(spec("llama-2-7b"))
    # 16 tokens x 524,288 B
    assert layout.block_bytes == 8_388_608
    assert [group.layers for group in layout.groups] == [32]
    # 4,096 / 16
    assert layout.startup_blocks(engine) == 256
    assert layout.blocks_per_request(1000, engine) == 63


def test_the_smallest_kind_sets_the_group_size() -> None:
    # 2 full + 10 sliding -> groups of 2: one full, five sliding
    layout, engine = laid_out(hybrid(2, 10), device="cpu", max_num_batched_tokens=512)
    assert [(group.layer.kind, group.layers) for group in layout.groups] == [
        ("full", 2),
        *[("sliding", 2)] * 5,
    ]
    # a page is 128 tokens x 1 head x 128 x 2 B = 32,768 B; a block holds two of them
    assert layout.block_bytes == 65_536
    # full: 4,096 / 128 = 32; sliding: ceil((63 + 512) / 128) + 1 = 6, five times
    assert layout.startup_blocks(engine) == 32 + 5 * 6


def test_an_odd_number_of_layers_is_padded() -> None:
    # 2 full + 5 sliding -> groups of 2: sliding layers in 3 groups of 2, 2 and 1
    layout, _ = laid_out(hybrid(2, 5), device="cpu")
    assert [group.layers for group in layout.groups] == [2, 2, 2, 1]
    # the block is as large as the fullest group's pages
    assert layout.block_bytes == 65_536
    assert any("1 padded" in note for note in layout.notes)


def test_nearly_equal_kinds_use_the_larger_size() -> None:
    # 5 full + 6 sliding: 6 < 1.5 x 5, so groups of 6: one each, the full one padded
    layout, _ = laid_out(hybrid(5, 6), device="cpu")
    assert [group.layers for group in layout.groups] == [5, 6]
    assert layout.block_bytes == 6 * 32_768
    # 4 full + 6 sliding: 6 = 1.5 x 4, so groups of 4
    layout, _ = laid_out(hybrid(4, 6), device="cpu")
    assert [group.layers for group in layout.groups] == [4, 3, 3]


def test_a_sliding_layer_holds_its_window_and_what_is_in_flight() -> None:
    model = spec("mistral-7b-v0.1")
    # 1 batch: ceil((4,095 + 2,048) / 16) + 1 = 384 + 1
    layout, engine = laid_out(model, async_scheduling=False)
    assert layout.startup_blocks(engine) == 385
    # 2 batches: ceil((4,095 + 4,096) / 16) + 1 = 512 + 1
    layout, engine = laid_out(model)
    assert layout.startup_blocks(engine) == 513
    # short requests take no more blocks than they have tokens
    assert layout.blocks_per_request(1000, engine) == 63
    # and never more than max_model_len: ceil(4,000 / 16) + 1
    layout, engine = laid_out(model, max_model_len=4000)
    assert layout.startup_blocks(engine) == 251


def test_a_chunked_layer_has_no_extra_block() -> None:
    scout = spec("llama-4-scout")
    # 36 chunked, 12 full: groups of 12; chunked: (8,192 + 2 x 2,048) / 16 = 768
    layout, engine = laid_out(scout, max_model_len=32_768)
    assert [group.blocks(32_768, engine) for group in layout.groups] == [768, 768, 768, 2048]


def test_chunked_layers_without_the_hybrid_manager() -> None:
    options = {"max_model_len": 32_768, "hybrid_manager": False}
    layout, engine = laid_out(spec("llama-4-scout"), **options)
    assert [group.layers for group in layout.groups] == [48]
    assert layout.startup_blocks(engine) == 2048


def test_a_sliding_only_model_needs_no_hybrid_manager() -> None:
    layout, engine = laid_out(spec("mistral-7b-v0.1"), hybrid_manager=False)
    assert layout.groups[0].layer.kind == "sliding"
    assert layout.startup_blocks(engine) == 513


def test_attention_blocks_grow_to_cover_a_state() -> None:
    # Qwen3-Next on a GPU: a state is (8,192 x 3 + 524,288) x 2 B = 1,097,728 B; attention
    # keeps 2 x 2 x 256 x 2 = 2,048 B per token and layer: 16 x ceil(1,097,728 / 32,768) = 544
    layout, engine = laid_out(spec("qwen3-next-80b"))
    assert {group.block_size for group in layout.groups} == {544}
    # 12 full, 36 state layers: four groups of 12; a block is 12 x 544 x 2,048 B
    assert [group.layers for group in layout.groups] == [12, 12, 12, 12]
    assert layout.block_bytes == 12 * 544 * 2048
    # a state takes 2 blocks while prefixes are cached, else 1
    assert layout.blocks_per_request(544, engine) == 3 * 2 + 1
    layout, engine = laid_out(spec("qwen3-next-80b"), prefix_caching=False)
    assert layout.blocks_per_request(544, engine) == 3 * 1 + 1


def test_mixed_head_sizes_of_one_kind_share_a_group() -> None:
    model = read_spec(
        {
            "model_type": "openelm",
            "num_layers": 2,
            "model_dim": 256,
            "num_heads": 4,
            "num_kv_heads": [1, 2],
            "head_dim": 64,
            "torch_dtype": "float16",
            "max_position_embeddings": 2048,
        }
    )
    layout, _ = laid_out(model)
    # 16 tokens x (1 + 2) heads x 128 x 2 B
    assert layout.block_bytes == 16 * 3 * 256
    assert len(layout.groups) == 1


def test_cross_attention_has_blocks_of_its_own() -> None:
    layout, engine = laid_out(spec("whisper-large-v3-turbo"))
    # self: ceil(448 / 16) = 28; cross: ceil(1,500 / 16) = 94; at start vLLM counts
    # max_num_batched_tokens = 2,048 there: 128
    assert layout.blocks_per_request(448, engine) == 28 + 94
    assert layout.startup_blocks(engine) == 28 + 128


def test_mamba_2_keeps_a_checkpoint_beside_its_states() -> None:
    layout, engine = laid_out(spec("granite-4-h-tiny"))
    # 4 full, 36 Mamba-2 layers: groups of 4; each of 9 state groups holds 2 + 1 blocks
    assert layout.blocks_per_request(1, engine) == 9 * 3 + 1


def test_a_pure_state_model_takes_one_block_per_request() -> None:
    layout, engine = laid_out(spec("mamba-2.8b"))
    # 64 layers x 5,120 x (3 + 16) x 4 B in float32
    assert layout.block_bytes == 64 * 5120 * 19 * 4
    assert layout.blocks_per_request(10_000, engine) == 1


def test_tensor_parallel_blocks() -> None:
    # 8 KV heads on 4 ranks: 2 each; a latent is whole on every rank
    layout, _ = laid_out(spec("llama-3-70b"), tp=4)
    assert layout.block_bytes == 16 * 327_680 // 4
    layout, _ = laid_out(spec("deepseek-v3"), tp=8)
    assert layout.block_bytes == 64 * 70_272


def test_an_impossible_split_of_a_state() -> None:
    with pytest.raises(OptionError, match="--tp"):
        laid_out(spec("nemotron-h-8b"), tp=3)


def test_groups_of_a_state_are_copied_to_ranks_that_cannot_split_them() -> None:
    # Granite 4 has one group of B and C: two ranks keep a copy each:
    # (3,072 x 3 + 2 x 256 x 3) / 2 convolution elements, 393,216 / 2 recurrent, x 2 B
    from harness.kv.dtypes import state_bytes

    layer = next(layer for layer in spec("granite-4-h-tiny").layers if layer.kind == "state")
    assert state_bytes(layer.state, 2, resolve("auto", "bfloat16")) == (5376 + 196_608) * 2


@pytest.mark.parametrize(
    ("options", "tokens", "seqs", "block"),
    [
        ({}, 2048, 256, 16),
        ({"device_bytes": 80 * 2**30}, 8192, 1024, 16),
        ({"device_bytes": 180 * 2**30}, 16384, 1024, 16),
        ({"device": "cpu"}, 2048, 128, 128),
        ({"device": "cpu", "tp": 2}, 4096, 256, 128),
        ({"max_num_batched_tokens": 100}, 100, 100, 16),
    ],
)
def test_defaults_by_device(options: dict[str, Any], tokens: int, seqs: int, block: int) -> None:
    engine = resolve_engine(spec("llama-3-70b"), EngineOptions(**options))
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (tokens, seqs)
    assert engine.block_size == block
    assert engine.batches == (1 if options.get("device") == "cpu" else 2)
    assert engine.stated


def test_defaults_without_chunked_prefill() -> None:
    # a latent model on the CPU prefills a prompt at once, in blocks of 16
    engine = resolve_engine(spec("deepseek-v2-lite"), EngineOptions(device="cpu"))
    assert engine.max_num_batched_tokens == 163_840
    assert engine.block_size == 16
    assert resolve_engine(spec("deepseek-v3"), EngineOptions()).block_size == 64


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(OptionError, match="--max-model-len: 8192 is not valid"):
        resolve_engine(spec("llama-2-7b"), EngineOptions(max_model_len=8192))
