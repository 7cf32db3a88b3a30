"""What layouts make of tokens held: every difference by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.holdings import Moment
from harness.analysis.reconcile_layout import Expected, layout_of
from harness.analysis.reconcile_theory import KvTheory, config_theory, stated_theory
from harness.errors import ModelConfigError
from harness.manifest import BackendInfo
from tests.support.fake_server import paged_info, static_info

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
GIB = 2**30


def config(name: str, **changes: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return {**found, **changes}


def moment(*stored: float, decoding: int | None = None, promised: float = 640.0) -> Moment:
    seen = len(stored) if decoding is None else decoding
    return Moment(
        t_s=0.0,
        stored=np.array(stored),
        decoding=np.repeat([1.0, 0.0], [seen, len(stored) - seen]),
        prompt=np.full(len(stored), 512.0),
        promised=np.full(len(stored), promised),
        cached=np.zeros(len(stored)),
        in_flight=len(stored),
    )


def expected(info: BackendInfo, at: Moment, theory: KvTheory | None = None) -> Expected:
    known = theory or stated_theory(info)
    assert known is not None
    layout = layout_of(info, known)
    assert not isinstance(layout, str)
    return layout(at)


def steps(found: Expected) -> dict[str, float]:
    return {name: amount for name, amount in found.steps.items() if amount}


def test_paged_rounds_each_request_up_to_blocks() -> None:
    # 513 tokens take 5 blocks of 128 = 640, 512 take 4 and no more: 127 x 1,024 B
    found = expected(paged_info(), moment(513, 512))
    assert found.needed == 1025 * 1024
    assert steps(found) == {"block_rounding": 127 * 1024}
    assert (found.places, found.promise) == (640 + 512, None)


@pytest.mark.parametrize("mode", ["static", "static/none", "static-batching-none"])
def test_a_slot_is_taken_whole(mode: str) -> None:
    found = expected(static_info(mode=mode), moment(513, 600, 0, decoding=2))
    assert found.needed == 1113 * 1024
    assert steps(found) == {"slot": (2 * 2048 - 1113) * 1024}
    # the third is admitted and has stored nothing: its slot is promised
    assert (found.promise, found.places) == (2048 * 1024, 2 * 2048)


def test_names_are_read_as_everywhere() -> None:
    """Unknown parts and unknown caches are no layout that is known; old names are."""
    known = stated_theory(static_info())
    assert known is not None
    for mode in ("static/half", "static/exact/pow2", "paged", "off"):
        said = layout_of(static_info(mode=mode), known)
        assert said == f"the cache mode {mode} is not known here"
    batch = expected(static_info(mode="static/exact/batch"), moment(513, 600))
    assert steps(batch) == {"padding": 87 * 1024}


@pytest.mark.parametrize(
    ("mode", "longest", "region"),
    # a request of 512 + 128 promises 640 tokens: the next power of two is 1,024, cut at 1,000
    [("static/pow2", 2048, 1024), ("static/pow2", 1000, 1000), ("static/exact", 2048, 640)],
)
def test_a_region_is_used_as_far_as_it_is_filled(mode: str, longest: int, region: int) -> None:
    info = static_info(mode=mode, max_model_len=longest)
    found = expected(info, moment(513, 600, 0, decoding=2))
    assert found.needed == found.used == 1113 * 1024
    assert found.promise == (3 * region - 1113) * 1024
    assert found.places == 1113


def test_dynamic_pads_to_the_longest_row_but_not_the_one_being_read() -> None:
    info = static_info(mode="dynamic")
    # rows of 500 and 600: 100 columns of padding; 256 tokens of a prompt lie beside the batch
    found = expected(info, moment(500, 600, 256, decoding=2))
    assert found.needed == 1356 * 1024
    assert steps(found) == {"padding": 100 * 1024}
    # promised: 3 requests x 640; stored or padded: 2 x 600 + 256
    assert found.promise == (3 * 640 - 1456) * 1024
    assert found.places == 1456


def test_f125_quantized_bytes_are_more_than_bits_of_a_token() -> None:
    # 4 of 16 bits: 256 B of 1,024 B per token; 512 numbers a token in groups of 64: 8 scales and
    # 8 zeros of 2 B, 32 B. A prompt of 512 and 300 decoded tokens: 300 mod 128 = 44 are in full
    info = static_info(mode="quantized", kv_bits=4)
    found = expected(info, moment(812, promised=1024))
    assert found.needed == 812 * 256
    assert steps(found) == {"scales": 768 * 32, "residual": 44 * 768}
    # 1,024 promised tokens, of which 127 may be in full, come to 388,384 B: less than the prompt
    # of 512 while it is read at full precision, 524,288 B
    assert found.promise == 512 * 1024 - (768 * 288 + 44 * 1024)
    # of two requests both are promised, and one prompt is read at a time
    most = (1024 - 127) * 288 + 127 * 1024
    two = expected(info, moment(812, 812, promised=1024))
    assert two.promise == most + 512 * 1024 - 2 * (768 * 288 + 44 * 1024)
    # an answer of 1,488 tokens outgrows its prompt: 1,873 x 288 + 127 x 1,024 B
    long = expected(info, moment(812, promised=2000))
    assert long.promise == 1873 * 288 + 127 * 1024 - (768 * 288 + 44 * 1024)
    # a prompt that is being read is not quantized yet
    assert steps(expected(info, moment(400, decoding=0))) == {"residual": 400 * 768}
    assert expected(replace_info(info, kv_bits=8), moment(600)).needed == 600 * 512
    assert expected(replace_info(info, dtype="float32"), moment(600)).needed == 600 * 128


def test_a_sliding_cache_keeps_one_token_less_than_its_window() -> None:
    # 256 see the newest token, which is not stored: 255 x 1,024 B, of 100 tokens all
    info = static_info(mode="sliding", sliding_window=256)
    assert expected(info, moment(600, 100)).needed == (255 + 100) * 1024


def test_a_wider_dtype_than_the_configs_is_a_step_of_its_own() -> None:
    # Llama-2-7B in fp16: 524,288 B a token; a server in float32 stores twice as much
    info = paged_info(dtype="float32", block_size=16, max_model_len=4096)
    found = expected(info, moment(32), config_theory(config("llama-2-7b"), info))
    assert found.needed == 32 * 524_288
    assert steps(found) == {"dtype": 32 * 524_288}


def test_ranks_that_copy_heads_hold_more_than_their_share() -> None:
    # Llama-3-70B has 8 KV heads: 16 ranks hold one each, twice a rank's share of 327,680 / 16
    info = paged_info(dtype=None, block_size=16, max_model_len=8192)
    theory = config_theory(config("llama-3-70b"), info, tp=16)
    found = expected(info, moment(16), theory)
    assert found.needed == 16 * 327_680 / 16
    assert steps(found) == {"replication": 16 * 327_680 / 16}


def test_c73_c84_windows_are_needed_only_as_far_as_they_reach() -> None:
    # 8,192 tokens of Gemma-2-9b: 21 layers keep all, 21 the last 4,095 before the newest;
    # 8,192 B each: one token per windowed layer less than 1.96875 GiB, the linear rule: 2.625
    info = paged_info(dtype=None, block_size=16, max_model_len=8192)
    theory = config_theory(config("gemma-2-9b"), info)
    needed = theory.stored_bytes(np.array([8192.0]))
    assert needed == 21 * (8192 + 4095) * 8192 == 1.96875 * GIB - 21 * 8192
    assert theory.token_bytes * 8192 == 2.625 * GIB


def test_c74_an_engine_that_reserves_full_pages_shows_its_windows_as_a_step() -> None:
    # gpt-oss-120b, 8,192 tokens: 18 layers full, 18 with a window of 128, 2,048 B each
    info = paged_info(dtype=None, block_size=16, max_model_len=8192)
    theory = config_theory(config("gpt-oss-120b"), info).all_full()
    found = expected(info, moment(8192), theory)
    assert found.needed == 18 * 2048 * (8192 + 127)
    assert steps(found) == {"window": 18 * 2048 * (8192 - 127)}
    assert found.used == 8192 * 73_728
    # one slope cannot describe it
    assert found.places is None


def test_groups_of_layers_round_and_hold_windows_apart() -> None:
    # the same with the hybrid manager, on a GPU of 2 batches in flight: 512 full blocks of 16;
    # windows hold ceil(min(127 + 2 x batch, 8,192) / 16) + 1 blocks, but no more than 512
    info = paged_info(
        dtype=None, block_size=16, max_model_len=8192, max_num_batched_tokens=2048, gpu_uuids=("g",)
    )
    theory = config_theory(config("gpt-oss-120b"), info)
    found = expected(info, moment(8192), theory)
    held = -(-(127 + 2 * 2048) // 16) + 1
    assert found.used == 18 * 2048 * 16 * (512 + held)
    assert steps(found) == {"window": 18 * 2048 * (16 * held - 127)}
    # below the window there is only rounding: 100 tokens in 7 blocks of 16 in both groups
    short = expected(info, moment(100), theory)
    assert steps(short) == {"block_rounding": 2 * 18 * 2048 * 12}


def test_constant_states_take_whole_pages_of_the_common_pool() -> None:
    # Jamba: 4 attention layers and 28 Mamba layers; a state is padded to the attention page
    info = paged_info(dtype=None, block_size=16, max_model_len=8192)
    theory = config_theory(config("jamba-v0.1"), info)
    price = theory.price
    assert price is not None
    found = expected(info, moment(8192), theory)
    assert found.needed == theory.stored_bytes(np.array([8192.0])) == price.needed(8192)
    assert found.used == price.reserved("paged", 8192)
    assert set(steps(found)) <= {"block_rounding", "other_layers"}
    assert steps(found)["other_layers"] > 0


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (paged_info(kind="tgi"), "a tgi server"),
        (paged_info(block_size=None), "no block size"),
        (paged_info(block_size=0), "no block size"),
        (static_info(mode="quantized", kv_bits=0), "no bits per element"),
        (static_info(mode="strange"), "strange is not known"),
        (static_info(mode="quantized"), "no bits per element"),
        (static_info(max_model_len=None), "no max_model_len"),
    ],
)
def test_what_cannot_be_worked_out_says_why(info: BackendInfo, words: str) -> None:
    theory = stated_theory(info)
    assert theory is not None
    layout = layout_of(info, theory)
    assert isinstance(layout, str)
    assert words in layout


def test_theory_comes_from_the_config_and_is_refused_where_it_is_a_guess() -> None:
    assert stated_theory(paged_info(kv_bytes_per_token=None)) is None
    info = paged_info(dtype=None)
    theory = config_theory(config("llama-2-7b"), info)
    assert (theory.source, theory.needed_token_bytes) == ("config", 524_288)
    # 6.74 billion parameters of 2 B
    assert theory.weights_bytes == pytest.approx(2 * 6.74e9, rel=0.01)
    with pytest.raises(ModelConfigError, match="not known"):
        config_theory(config("llama-2-7b", model_type="unheard_of"), info)


def replace_info(info: BackendInfo, **changes: object) -> BackendInfo:
    facts = {name: getattr(info, name) for name in info.__struct_fields__}
    return BackendInfo(**{**facts, **changes})


def test_a_window_over_a_full_model_slides() -> None:
    # Llama-2-7B keeps all by its config: 255 of 600 tokens x 524,288 B
    info = static_info(mode="sliding", sliding_window=256, dtype=None)
    theory = config_theory(config("llama-2-7b"), info)
    assert expected(info, moment(600), theory).needed == 255 * 524_288


def test_a_model_with_windows_keeps_them_in_sliding_mode() -> None:
    info = static_info(mode="sliding", sliding_window=4096, dtype="bfloat16")
    theory = config_theory(config("gemma-2-9b"), info)
    assert {part.window for part in theory.parts} == {None, 4096}
    narrower = config_theory(config("gemma-2-9b"), replace_info(info, sliding_window=256))
    assert {part.window for part in narrower.parts} == {256}


def test_a_window_over_any_model_is_no_wider_than_its_own() -> None:
    theory = config_theory(config("gemma-2-9b"), paged_info(dtype=None, max_model_len=8192))
    assert {part.window for part in theory.with_window(8192).parts} == {4096, 8192}
    assert replace(theory, parts=()).token_bytes == 0
