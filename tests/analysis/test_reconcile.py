"""Needed -> used -> reserved -> device over runs whose truth is known, summed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.matching import engine_theory, match
from harness.analysis.reconcile import reconcile_cell
from harness.analysis.reconcile_theory import KvTheory, LayerPart, config_theory, stated_theory
from harness.analysis.reconcile_types import Reconciled, Stage, Unreconciled
from harness.analysis.run import analyse
from harness.analysis.summary_types import Window
from harness.analysis.table import build_tables
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import BackendSeries, KvPool, Series, SharedDevice
from harness.records import RequestRecord
from tests.support.fake_records import cell_of, record
from tests.support.fake_server import MIB, PAGED, STATIC, paged_info, static_info
from tests.support.run_builder import build_run

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
CELL = cell_of(PAGED, 2)
WINDOW = Window(
    users=2, start_s=0.0, open_s=9.0, close_s=20.0, last_counted_s=20.0, end_s=21.0,
    closed_by="event", reason=None, full_share=1.0, ramp_s=0.0, warmup_s=0.0, follow_s=0.0,
    drain_s=0.0,
)  # fmt: skip
POOL = KvPool(total_bytes=16 * MIB, num_blocks=128, block_size=128, size_tokens=16384)
#: two requests of 512 prompt tokens, a token every 0.1 s from 10.5 s on
RECORDS = [
    record(CELL, user, token_us=(500_000, *[100_000] * 63), output_tokens=64, t_end_s=17.0)
    for user in (0, 1)
]
#: when they have 2 and 12 tokens: 513 and 523 stored each
TIMES = (10.65, 11.65)


def series(
    pool: KvPool | None = None, shared: SharedDevice | None = None, **columns: Sequence[float]
) -> BackendSeries:
    """Two samples while both requests run, unless a column has more values of its own."""
    gauges = {"running": (2.0, 2.0), "waiting": (0.0, 0.0), **columns}
    return BackendSeries(
        backend="paged",
        source="scraper",
        values={
            name: Series(np.array(TIMES if len(v) == 2 else (5.0, *TIMES)), np.array(v, float))
            for name, v in gauges.items()
        },
        pool=pool,
        failed_t_s=np.empty(0),
        failures=(),
        missing=(),
        shared_device=shared,
    )


def explained(
    found: BackendSeries,
    info: BackendInfo,
    theory: KvTheory | None = None,
    records: Sequence[RequestRecord] = RECORDS,
) -> Reconciled:
    known = theory or stated_theory(info)
    table = build_tables(records)[CELL]
    matched = match(table, WINDOW, found, info, known)
    result = reconcile_cell(CELL, matched, found, info, known)
    assert isinstance(result, Reconciled), result
    for stage in result.stages:
        assert all(step.amount_bytes > 0 for step in stage.steps)
        total = sum(step.amount_bytes for step in stage.steps) + stage.unexplained_bytes
        assert stage.start_bytes + total == stage.end_bytes
    return result


def steps(stage: Stage | None) -> dict[str, int]:
    assert stage is not None
    return {step.reason: step.amount_bytes for step in stage.steps}


def used(bytes_per_request: float) -> tuple[float, float]:
    return (2 * bytes_per_request, 2 * bytes_per_request)


PAGED_SERIES = {
    # 5 blocks of 128 tokens each: 10 of 127
    "kv_usage_ratio": (10 / 127, 10 / 127),
    "kv_used_bytes": used(5 * 128 * 1024),
}


def test_paged_sums_up_to_its_pool() -> None:
    found = explained(series(POOL, **PAGED_SERIES), paged_info())
    # 2 x (513 + 523) / 2 = 1,036 tokens on average; 1,280 places in blocks
    assert (found.moments, found.samples, found.requests, found.tokens) == (2, 2, 2, 1036)
    assert found.needed_bytes == 1036 * 1024
    stage = found.stage("used")
    assert steps(stage) == {"block_rounding": (1280 - 1036) * 1024}
    assert stage is not None
    assert (stage.unexplained_bytes, stage.unexplained_share, stage.scatter_bytes) == (0, 0, 0)
    # 128 blocks of 131,072 B: 10 in use, one null block, 117 free
    reserved = found.stage("reserved")
    assert steps(reserved) == {"null_block": 131_072, "free_blocks": 117 * 131_072}
    assert reserved is not None
    assert (reserved.end_bytes, reserved.unexplained_bytes) == (16 * MIB, 0)


def test_what_theory_does_not_know_stays_unexplained_and_no_step_takes_it() -> None:
    # a server that uses a tenth more than blocks account for: 131,072 B of 1,441,792 B
    more = {**PAGED_SERIES, "kv_used_bytes": used(5 * 128 * 1024 * 1.1)}
    stage = explained(series(POOL, **more), paged_info()).stage("used")
    assert stage is not None
    assert stage.unexplained_bytes == 131_072
    assert stage.unexplained_share == pytest.approx(1 / 11)
    # and one that uses less: more is explained than is there
    less = {**PAGED_SERIES, "kv_used_bytes": used(4 * 128 * 1024)}
    stage = explained(series(POOL, **less), paged_info()).stage("used")
    assert stage is not None
    assert (stage.unexplained_bytes, stage.unexplained_share) == (-2 * 131_072, 0.25)


def test_signs_that_cancel_in_the_mean_show_in_the_scatter() -> None:
    one = 2 * 5 * 128 * 1024
    found = series(POOL, **{**PAGED_SERIES, "kv_used_bytes": (one + 1000.0, one - 1000.0)})
    stage = explained(found, paged_info()).stage("used")
    assert stage is not None
    assert (stage.unexplained_bytes, stage.scatter_bytes) == (0, 1000)


def test_a_budget_beyond_whole_blocks_is_in_each_blocks_bytes() -> None:
    # 16 MiB + 64,000 B make 128 blocks and a rest: 500 B more in each block's share
    pool = KvPool(total_bytes=16 * MIB + 64_000, num_blocks=128, block_size=128)
    found = series(pool, **{**PAGED_SERIES, "kv_used_bytes": used(5 * (131_072 + 500))})
    stage = explained(found, paged_info()).stage("used")
    assert steps(stage)["budget_remainder"] == 10 * 500
    assert stage is not None
    assert stage.unexplained_bytes == 0


def test_shared_prefixes_save_no_more_than_cached_tokens_account_for() -> None:
    # both requests have 384 tokens from the cache: 3 blocks may be the other's, 7 are in use
    cached = [record(CELL, u, token_us=(500_000, *[100_000] * 63), output_tokens=64,
                     t_end_s=17.0, cached_prompt_tokens=384) for u in (0, 1)]  # fmt: skip
    shared = {"kv_usage_ratio": (7 / 127,) * 2, "kv_used_bytes": (7 * 131_072.0,) * 2}
    found = explained(series(POOL, **shared), paged_info(), records=cached)
    assert found.shared_bytes == 384 * 1024
    assert found.needed_bytes == (1036 - 384) * 1024
    stage = found.stage("used")
    assert stage is not None
    assert stage.unexplained_bytes == 0
    # 4 blocks less than without sharing: one of them stays unexplained
    fewer = {"kv_usage_ratio": (6 / 127,) * 2, "kv_used_bytes": (6 * 131_072.0,) * 2}
    stage = explained(series(POOL, **fewer), paged_info(), records=cached).stage("used")
    assert stage is not None
    assert stage.unexplained_bytes == -131_072


SLOT = 2048 * 1024


def test_static_takes_slots_and_keeps_the_empty_ones() -> None:
    gauges = {
        "kv_used_bytes": used(SLOT),
        "kv_reserved_bytes": used(SLOT),
        "slots": (8.0, 8.0),
        # 300 MiB before the first request ran, which is when nothing was running
        "running": (0.0, 2.0, 2.0),
        "process_rss_bytes": (300.0 * MIB, 310.0 * MIB, 310.0 * MIB),
    }
    found = explained(series(**gauges), static_info())
    assert steps(found.stage("used")) == {"slot": 2 * SLOT - 1036 * 1024}
    assert steps(found.stage("reserved")) == {}
    # the pool of 16 MiB was there before the load: 300 - 16 MiB are the process's own
    process = found.stage("process")
    assert steps(process) == {"empty_slots": 6 * SLOT, "before_load": 284 * MIB}
    assert process is not None
    assert process.unexplained_bytes == 10 * MIB
    assert any("temporaries" in line for line in found.absent)
    assert any("weights" in line for line in found.absent)


def test_dynamic_promises_what_takes_no_memory_yet() -> None:
    info = static_info(mode="dynamic")
    gauges = {"kv_used_bytes": (2 * 513 * 1024.0, 2 * 523 * 1024.0),
              "kv_reserved_bytes": used(640 * 1024)}  # fmt: skip
    found = explained(series(**gauges), info)
    assert steps(found.stage("used")) == {}
    assert steps(found.stage("reserved")) == {"promise": (1280 - 1036) * 1024}
    assert all(stage.unexplained_bytes == 0 for stage in found.stages)


def test_padding_that_the_server_measures_replaces_what_was_worked_out() -> None:
    info = static_info(mode="dynamic/batch")
    gauges = {"kv_used_bytes": used(700 * 1024), "kv_padding_bytes": (300_000.0, 300_000.0)}
    stage = explained(series(**gauges), info).stage("used")
    assert steps(stage) == {"padding": 300_000}
    assert stage is not None
    assert stage.unexplained_bytes == 1400 * 1024 - 1036 * 1024 - 300_000


def test_f125_a_quantized_cache_shows_its_scales_and_its_residual() -> None:
    # 4 bits: 256 B a token. 128 newest tokens of each request are not quantized: 1,024 B each,
    # of which needed has 256 B already. Scales: 64 B for each quantized token
    info = static_info(mode="quantized", kv_bits=4)
    tokens, newest = 1036, 256
    parts = {
        "kv_payload_bytes": (tokens - newest) * 256.0,
        "kv_scales_bytes": (tokens - newest) * 64.0,
        "kv_residual_bytes": newest * 1024.0,
    }
    gauges = {name: (value, value) for name, value in parts.items()}
    total = sum(parts.values())
    found = explained(series(kv_used_bytes=(total, total), **gauges), info)
    assert found.needed_bytes == tokens * 256
    stage = found.stage("used")
    assert steps(stage) == {"scales": 780 * 64, "residual": 256 * 768}
    assert stage is not None
    assert stage.unexplained_bytes == 0


GPU = {
    "kv_used_bytes": used(518 * 1024),
    "kv_reserved_bytes": used(640 * 1024),
    "cuda_allocated_bytes": (15_006e6, 15_006e6),
    "cuda_reserved_bytes": (16_726e6, 16_726e6),
    "cuda_max_allocated_bytes": (15_500e6, 15_506e6),
    # 24,564 MiB, as nvidia-smi says of a 24 GB card
    "device_used_bytes": (24_564.0 * MIB,) * 2,
}


def test_d99_d100_allocated_is_below_reserved_is_below_the_device() -> None:
    theory = KvTheory("config", _parts(), weights_bytes=15_000_000_000)
    found = explained(series(**GPU), static_info(mode="dynamic"), theory)
    device = found.stage("device")
    assert device is not None
    # 24,564 MiB are 25.757e9 B
    assert device.end_bytes == 24_564 * MIB == 25_757_220_864
    assert device.start_bytes == 1036 * 1024
    assert steps(device) == {
        "weights": 15_000_000_000,
        # peak - steady, the larger of two samples; then what torch keeps beyond it
        "temporaries": 500_000_000,
        "allocator": 16_726_000_000 - 15_506_000_000,
        "cuda_context": 24_564 * MIB - 16_726_000_000,
    }
    # what torch allocated beside KV and weights: 15,006 - 15,000 - 1.06 MB
    assert device.unexplained_bytes == 6_000_000 - 1036 * 1024


def test_f124_a_temporary_copy_is_measured_apart_from_what_is_steady() -> None:
    without = explained(series(**GPU), static_info(mode="dynamic"))
    stated = {**GPU, "temporary_peak_bytes": (40e6, 50e6)}
    found = explained(series(**stated), static_info(mode="dynamic"))
    assert found.stage("used") == without.stage("used")
    assert steps(found.stage("device"))["temporaries"] == 50_000_000
    # absent, not 0 and not what is left over
    del stated["temporary_peak_bytes"], stated["cuda_max_allocated_bytes"]
    found = explained(series(**stated), static_info(mode="dynamic"))
    assert "temporaries" not in steps(found.stage("device"))
    assert any("temporaries" in line for line in found.absent)


def test_a_shared_gpu_is_no_servers_own() -> None:
    both = SharedDevice(("g",), ("paged", "contiguous"), Series.of([(10.0, 1.0)]))
    found = explained(series(POOL, both, **PAGED_SERIES), paged_info())
    assert found.stage("device") is None
    assert any("shared" in line for line in found.absent)


def test_block_tables_lie_beside_the_pool() -> None:
    # 256 rows x 16 blocks x 4 B and 2,048 slot numbers of 8 B
    gauges = {**PAGED_SERIES, "process_rss_bytes": (1e9, 1e9)}
    info = paged_info(max_num_batched_tokens=2048)
    found = explained(series(POOL, **gauges), info)
    assert steps(found.stage("process"))["block_tables"] == 256 * 16 * 4 + 2048 * 8


def test_d86_what_was_not_measured_is_absent() -> None:
    found = explained(series(kv_used_bytes=used(SLOT)), static_info())
    assert [stage.name for stage in found.stages] == ["used"]
    assert [line.split(":")[0] for line in found.absent] == ["reserved", "weights", "device"]


@pytest.mark.parametrize(
    ("found", "info", "words"),
    [
        (series(POOL, **PAGED_SERIES), paged_info(kv_bytes_per_token=None), "--model-config"),
        (series(POOL), paged_info(), "no bytes in use"),
        (None, paged_info(), "not read"),
        (series(POOL, **{**PAGED_SERIES, "running": (3.0, 3.0)}), paged_info(), "at none of 2"),
        (series(kv_used_bytes=(0.0, 0.0)), static_info(mode="off"), "no cache"),
    ],
)
def test_a_cell_that_cannot_be_explained_says_why(
    found: BackendSeries | None, info: BackendInfo, words: str
) -> None:
    theory = stated_theory(info)
    matched = match(build_tables(RECORDS)[CELL], WINDOW, found, info, theory)
    result = reconcile_cell(CELL, matched, found, info, theory)
    assert isinstance(result, Unreconciled)
    assert words in result.reason


def test_d97_a_pool_that_states_all_its_blocks_saves_nothing_by_windows() -> None:
    # 512 blocks of 128 tokens: stated as 65,536 they are one group, as 16,513 several
    config = json.loads((CONFIGS / "gemma-3-4b.json").read_text())
    info = paged_info(dtype=None, max_model_len=4096)
    theory = config_theory(config, info)
    managers = []
    for tokens in (65_536, 16_513, None):
        pool = KvPool(total_bytes=32 * MIB, num_blocks=512, block_size=128, size_tokens=tokens)
        price = engine_theory(theory, series(pool), info).price
        assert price is not None
        managers.append(price.engine.hybrid_manager)
    # nothing stated, nothing known: vLLM's default is to use windows
    assert managers == [False, True, True]


def test_a_run_explains_each_of_its_cells() -> None:
    run = build_run((PAGED, STATIC), (4,), (20,))
    summary = analyse(run.manifest, run.records, run.events, run.series)
    assert [item.cell for item in summary.reconciled] == [c.cell for c in summary.cells]
    for item in summary.reconciled:
        assert isinstance(item, Reconciled)
        # the bytes per token are the server's own statement here, and that is said
        assert (item.theory, item.bytes_per_token) == ("server", 1024)
    paged = summary.reconciled[0]
    assert isinstance(paged, Reconciled)
    stage = paged.stage("used")
    assert stage is not None
    assert stage.unexplained_share is not None
    assert stage.unexplained_share < 0.01


def test_names_of_gauges_are_those_of_the_series() -> None:
    assert names.KV_USED_BYTES in PAGED_SERIES
    assert names.TEMPORARY_PEAK_BYTES == "temporary_peak_bytes"


def _parts() -> tuple[LayerPart, ...]:
    theory = stated_theory(static_info())
    assert theory is not None
    return theory.parts
