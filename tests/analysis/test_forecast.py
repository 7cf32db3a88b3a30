"""Two predictions, which of them the records fit, and how the measured knee differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.difference import difference_lines
from harness.analysis.forecast import forecast, recorded_lengths
from harness.analysis.forecast_types import Forecast
from harness.analysis.in_step import likely_most, needed_blocks, pattern
from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.table import CellTable, build_tables
from harness.analysis.verdict_types import Knee
from harness.kv.capacity import Capacity
from harness.kv.forecast import predict
from harness.kv.steady_capacity import growing_demand
from harness.records import CellKey, RequestRecord
from harness.workload import Conversations, LengthMix
from tests.support.fake_records import record
from tests.support.fake_server import PAGED, STATIC, paged_info, static_info
from tests.support.run_builder import build_run


def summary() -> RunSummary:
    run = build_run()
    return analyse(run.manifest, run.records, run.events, run.series)


@pytest.fixture(scope="module")
def found() -> RunSummary:
    return summary()


CELL = CellKey("paged", "paged", 32, 33, 8.0)


def walk(offsets: Sequence[float], turns: int = 30) -> CellTable:
    """Users whose requests of 32 + 33 tokens follow each other, 10 ms a token, from an offset."""
    records: list[RequestRecord] = []
    for user, offset in enumerate(offsets):
        for turn in range(turns):
            sent = offset + turn * 0.33
            records.append(
                record(
                    CELL,
                    len(records),
                    user=user,
                    t_intended_s=sent,
                    t_sent_s=sent,
                    t_end_s=sent + 0.3299,
                    token_us=(9_000, *([10_000] * 32)),
                    prompt_tokens=32,
                    output_tokens=33,
                    asked_output_tokens=33,
                )
            )
    return build_tables(records)[CELL]


def test_what_a_request_needs_over_time() -> None:
    # 32 tokens are 2 blocks of 16 from its sending on; the first token's arrival starts the
    # step that stores the 33rd: 3 blocks; the 17th that of the 49th: 4; with the 33rd all go
    times, blocks = needed_blocks(walk([0.0], turns=1), 16)
    assert blocks.tolist() == [2, 3, 4, 0]
    assert times == pytest.approx([0.0, 0.009, 0.169, 0.329])


def test_the_last_token_takes_no_place() -> None:
    one = record(CELL, 0, t_sent_s=0.0, t_intended_s=0.0, t_end_s=0.02, prompt_tokens=32,
                 token_us=(10_000,), output_tokens=1)  # fmt: skip
    _, blocks = needed_blocks(build_tables([one])[CELL], 16)
    assert blocks.tolist() == [2, 0]


@pytest.mark.parametrize(("spread", "least", "most"), [(0.0, 1.0, 1.0), (0.33, -1.0, 0.3)])
def test_in_step_and_out_of_step_are_told_apart(spread: float, least: float, most: float) -> None:
    rng = np.random.default_rng(5)
    table = walk([float(at) for at in rng.random(24) * spread])
    demand = growing_demand([(32, 33)], lambda tokens: -(-tokens // 16), 16)
    cell = summary().cells[0]
    window = replace(cell.window, users=24, open_s=1.0, close_s=9.0)
    seen = pattern(table, window, 16, demand, full=4.0)
    assert seen is not None
    assert seen.in_step == 24 * 4
    assert seen.out_of_step == likely_most(demand, 24)
    assert seen.share is not None
    # in step all hold 4 blocks at once (their 65th token is never stored); out of step one set
    # of 24 phases, the same at every turn, needs less than the 99th percentile of all sets
    assert least <= seen.share <= most


def test_few_users_tell_nothing(found: RunSummary) -> None:
    demand = growing_demand([(32, 33)], lambda tokens: -(-tokens // 16), 16)
    window = replace(found.cells[0].window, users=3, open_s=1.0, close_s=9.0)
    assert pattern(walk([0.0] * 3), window, 16, demand, 5.0) is None


def test_both_predictions_of_one_length() -> None:
    # 300 + 200 tokens in blocks of 16: 32 at most; 18.. 300 tokens are 19 blocks
    info = paged_info(block_size=16, num_blocks=1024)
    both = predict(info, {(300, 200): 50})
    assert both is not None
    # worst case: 1,023 / 32 = 31; out of step a request holds 25.4 on average: 1,023 / 25.4 = 40
    assert both.worst.requests == 31
    assert 35 <= both.steady.requests <= 39
    assert any("out of step" in step for step in both.steady.derivation)


def test_of_many_lengths_the_worst_case_is_drawn() -> None:
    info = paged_info(block_size=16, num_blocks=1024)
    both = predict(info, {(100, 100): 30, (400, 400): 10})
    assert both is not None
    # 13 or 50 blocks, mean 22.25: 45 on average, and fewer in 99 of 100 draws
    assert 1023 // 50 <= both.worst.requests < 1023 / 22.25
    assert "99%" in both.worst.derivation[0]


def test_the_schedulers_limits_hold_for_both() -> None:
    both = predict(paged_info(max_num_seqs=7), {(512, 128): 1})
    assert both is not None
    assert both.worst.requests == both.steady.requests == 7
    alone = predict(static_info(mode="static/none"), {(512, 128): 1, (100, 100): 1})
    assert alone is not None
    assert alone.worst.requests == alone.steady.requests == 1


def test_slots_are_the_same_in_step_and_out() -> None:
    both = predict(static_info(), {(512, 128): 10, (100, 20): 10})
    assert both is not None
    assert (both.worst.requests, both.steady.requests) == (8, 8)


def test_requests_beyond_the_longest_context() -> None:
    both = predict(paged_info(max_model_len=600), {(512, 128): 1})
    assert both is not None
    assert both.worst.requests == 0
    # refused ones do not count beside others
    mixed = predict(paged_info(max_model_len=600), {(512, 128): 1, (256, 128): 9})
    assert mixed is not None
    assert mixed.worst.requests == 127 // 3


def test_without_facts_there_is_none() -> None:
    assert predict(paged_info(num_blocks=None), {(512, 128): 1}) is None
    assert predict(paged_info(), {}) is None


def test_the_verdict_is_held_against_the_one_that_fits(found: RunSummary) -> None:
    paged, static = found.verdicts
    assert paged.forecast is not None
    assert static.forecast is not None
    assert paged.predicted == paged.forecast.fitting
    assert paged.predicted is not None
    assert paged.predicted.requests == 25
    assert paged.prediction_holds is True
    assert static.forecast.why == "this server reserves a request's full length at its start"


def cells_of(found: RunSummary, name: str) -> list[CellFigures]:
    return list(found.cells_of(name))


def test_lengths_are_those_of_the_counted_requests(found: RunSummary) -> None:
    run = build_run()
    tables = build_tables(run.records)
    cells = cells_of(found, "paged")
    lengths = recorded_lengths(PAGED.info, cells, tables)
    assert dict(lengths) == {(512, 128): sum(cell.counts.ok for cell in cells)}
    # without records: as asked
    assert dict(recorded_lengths(PAGED.info, cells, {})) == {(512, 128): 1}


@pytest.mark.parametrize(
    ("loop", "asks"),
    [
        ("open", None),
        ("closed", Conversations(system_tokens=1, turns=1, user_tokens=1, think_s=0.0)),
    ],
)
def test_rates_and_shared_prefixes_are_not_predicted(
    found: RunSummary, loop: str, asks: Conversations | None
) -> None:
    cells = cells_of(found, "paged")
    knee = found.verdicts[0].capacity
    assert forecast(PAGED.info, None, loop, asks, cells, {}, knee) is None  # type: ignore[arg-type]


def test_a_mix_is_out_of_step(found: RunSummary) -> None:
    info = paged_info(block_size=16, num_blocks=1024)
    cells = cells_of(found, "paged")
    mix = LengthMix(
        source="x", context_tokens=2048, over_length="skip", factor=1.0, requests=2, shortened=0,
        skipped=0, mean_tokens=400.0,
    )  # fmt: skip
    key = cells[-1].cell
    at = (cells[-1].window.open_s or 0.0) + 0.01
    records = [
        record(key, i, t_sent_s=at, t_intended_s=at, t_end_s=at + 0.7, prompt_tokens=100 * (i + 1),
               output_tokens=300)
        for i in range(6)
    ]  # fmt: skip
    tables = build_tables(records)
    knee = found.verdicts[0].capacity
    told = forecast(info, None, "closed", mix, cells, tables, knee)
    assert told is not None
    assert told.fits == "steady"
    assert told.why.startswith("requests of many lengths do not stay in step")


def knee(good: float | None, bad: float | None) -> Knee:
    status = "bracketed" if good and bad else "not_reached" if good else "below_first"
    return Knee("capacity", status, good, bad, "kv_memory" if bad else None, ())  # type: ignore[arg-type]


def both(worst: int, steady: int) -> Forecast:
    return Forecast(Capacity(worst, ()), Capacity(steady, ()), "worst", "")


@pytest.mark.parametrize(
    ("good", "bad", "predicted", "first"),
    [
        (16, 32, 25, "predicted 25 lies in the measured bracket, 16 to 32"),
        (16, 20, 25, "measured 16 to 20, predicted 25: at least 6 fewer"),
        (32, 64, 25, "measured 32, predicted 25: 7 more"),
        (None, 16, 25, "measured below 16, predicted 25: at least 10 fewer"),
        (16, None, 25, "16 held, predicted 25: no level beyond it was tried"),
        (32, None, 25, "measured 32, predicted 25: 7 more"),
    ],
)
def test_the_difference_is_summed_up_first(
    found: RunSummary, good: float | None, bad: float | None, predicted: int, first: str
) -> None:
    lines = difference_lines(
        PAGED.info,
        {(512, 128): 1},
        both(predicted, predicted),
        knee(good, bad),
        cells_of(found, "paged"),
    )
    assert lines[0] == first
    assert any("null block: 1 of 128; 127 are left" in line for line in lines)


def test_the_difference_names_what_was_seen(found: RunSummary) -> None:
    cells = cells_of(found, "paged")
    lines = difference_lines(PAGED.info, {(500, 13): 1}, both(60, 40), knee(16, 32), cells)
    # 513 tokens take 5 blocks, 512 only 4: floor(127 / 4) = 31
    assert any("513 tokens take 5 x 128 = 640 places, 127 of them" in line for line in lines)
    assert any("512 tokens take 4 blocks and 31 requests fit" in line for line in lines)
    assert any("at 32 at most 25 ran at once" in line for line in lines)
    assert any("all at full length at once 60 fit, out of step 40" in line for line in lines)
    assert any(line.startswith("watermark") for line in lines)
    near = difference_lines(PAGED.info, {(500, 13): 1}, both(60, 30), knee(16, 32), cells)
    assert "the steady state, 30, lies in the bracket" in near


def test_a_slots_waste_is_named(found: RunSummary) -> None:
    lines = difference_lines(
        STATIC.info, {(512, 128): 1}, both(8, 8), knee(4, 16), cells_of(found, "contiguous")
    )
    # 2,048 - 640 = 1,408, 69 %
    assert "given 2,048, 1,408 of them (69%)" in lines[1]


def test_shared_prefixes_are_named(found: RunSummary) -> None:
    cells = [
        replace(cell, memory=replace(cell.memory, prefix_hit_ratio=0.4)) if cell.memory else cell
        for cell in cells_of(found, "paged")
    ]
    lines = difference_lines(PAGED.info, {(512, 128): 1}, both(10, 10), knee(16, 32), cells)
    assert any("40.0 % of the prompt tokens came out of the prefix cache" in x for x in lines)


def test_no_knee_no_difference(found: RunSummary) -> None:
    nothing = Knee("capacity", "no_verdict", None, None, None, ())
    assert difference_lines(PAGED.info, {(1, 1): 1}, both(1, 1), nothing, []) == ()
