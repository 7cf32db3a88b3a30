"""A pool whose blocks several groups of layers share, as vLLM 0.32.0 states it.

A Gemma-3-like model: 2 full and 10 sliding layers in 6 groups, 512 blocks of 128 tokens in
32 MiB, max_model_len 4,096. A request of 512 + 128 tokens needs 6 x 4 = 24 blocks to begin.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.admission import judge_admission
from harness.analysis.knee import judge_backend
from harness.analysis.pool import blocks_for_prompt, pool_bytes_per_token, several_groups
from harness.analysis.run import analyse
from harness.observe.series import KvPool
from tests.analysis.test_memory import COUNTS, WINDOW, series
from tests.support.fake_server import MIB, PAGED, paged_info
from tests.support.run_builder import build_run, replace_series

GEMMA = KvPool(total_bytes=32 * MIB, num_blocks=512, block_size=128, size_tokens=16_513)
PLAIN = KvPool(total_bytes=16 * MIB, num_blocks=128, block_size=128, size_tokens=16_384)


def test_it_is_told_by_the_tokens_that_the_server_states() -> None:
    assert several_groups(GEMMA, 4096)
    assert not several_groups(PLAIN, 2048)
    # nothing stated, nothing known
    assert not several_groups(replace(GEMMA, size_tokens=None), 4096)
    assert not several_groups(None, 4096)


def test_bytes_per_token_are_those_of_the_tokens_that_fit() -> None:
    # 33,554,432 / 16,513 = 2,032.0 B, not 33,554,432 / 65,536 = 512 B
    assert pool_bytes_per_token(GEMMA, 4096) == pytest.approx(2032.0, abs=0.05)
    assert pool_bytes_per_token(PLAIN, 2048) == 1024
    # one group whose longest request ends inside a block states 128 / 17 x 2,050 tokens
    assert pool_bytes_per_token(replace(PLAIN, size_tokens=15_435), 2050) == 1024
    assert pool_bytes_per_token(KvPool(total_bytes=1024, size_tokens=2), None) == 512
    assert pool_bytes_per_token(KvPool(num_blocks=2, block_size=2), None) is None


def test_a_prompt_needs_what_is_stated_or_what_running_ones_hold() -> None:
    used, running = np.array([500.0, 491.0, 0.0]), np.array([25.0, 16.0, 0.0])
    # stated: ceil(4 x 65,536 / 16,513) = ceil(15.9) = 16
    # seen, x 4 / 5: 500 / 25 x 0.8 = 16; 491 / 16 x 0.8 = 24.6 -> 25; nothing runs: 16
    assert blocks_for_prompt(GEMMA, 512, 128, used, running).tolist() == [16, 25, 16]
    assert blocks_for_prompt(GEMMA, 512, 128, used, None).tolist() == [16, 16, 16]


def test_d97_waiting_with_blocks_of_one_group_free_is_memory() -> None:
    # 500 of 511 blocks held by 25 requests: 11 free would do for 4 blocks, not for 16 or more
    found = series(pool=GEMMA, kv_usage_ratio=[500 / 511] * 10, running=[25] * 10, waiting=[7] * 10)
    info = paged_info(num_blocks=512, max_model_len=4096)
    verdict = judge_admission(info, 512, WINDOW, COUNTS, found, 128)
    assert verdict.state == "kv_memory"
    assert "at most 11 blocks free; the next prompt needs about 16 or more" in verdict.evidence
    # the same samples in a pool of one group: a prefill queue
    plain = replace(GEMMA, size_tokens=65_536)
    same = replace_series(found, pool=plain)
    assert judge_admission(info, 512, WINDOW, COUNTS, same, 128).state == "compute"


def test_d97_there_is_no_prediction_and_the_reason_is_given() -> None:
    run = build_run((PAGED,), (4,), (20,))
    cells = analyse(run.manifest, run.records, run.events, run.series).cells
    info = paged_info(num_blocks=512, max_model_len=4096)
    verdict = judge_backend(info, cells, run.manifest.slo, GEMMA)
    assert (verdict.predicted, verdict.predicted_first_bad, verdict.prediction_holds) == (
        None,
        None,
        None,
    )
    assert verdict.no_prediction is not None
    assert "16,513 tokens for a pool of 512 x 128 = 65,536" in verdict.no_prediction
    plain = judge_backend(paged_info(), cells, run.manifest.slo, PLAIN)
    assert plain.predicted is not None and plain.no_prediction is None
