"""Share of the reserved KV bytes that hold tokens: from a run whose server is a formula."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from harness.analysis.fragmentation import change, tokens_stored, waterfalls
from harness.analysis.reservation import Reservation, reservation_of
from harness.analysis.run import analyse
from harness.analysis.scenario_types import FragmentationRow
from harness.analysis.summary_types import RunSummary
from harness.analysis.table import CellTable, TableBuilder
from harness.observe import names
from harness.observe.series import Series
from harness.records import CellKey
from harness.workload import LengthMix
from tests.support.fake_records import cell_of, record
from tests.support.fake_server import MIB, PAGED, STATIC, FakeServer, paged_info, static_info
from tests.support.run_builder import Run, build_run, replace_manifest, replace_series

MIX = LengthMix(
    source="lognormal:512,0,128,0",
    context_tokens=2048,
    over_length="clip",
    factor=1.0,
    requests=1,
    shortened=0,
    skipped=0,
    mean_tokens=640.0,
)


def mixed(run: Run, scenario: str = "fragmentation") -> Run:
    work = msgspec.structs.replace(run.manifest.workload, asks=MIX, scenario=scenario)
    run.manifest = replace_manifest(run.manifest, workload=work)
    return run


def analysed(run: Run) -> RunSummary:
    return analyse(run.manifest, run.records, run.events, run.series)


@pytest.fixture(scope="module")
def full() -> Run:
    """32 requests in flight of 512 + 128 tokens: 25 run on the paged server, 8 in slots."""
    return mixed(build_run(levels=(32,), min_requests=(200,)))


def saturated(run: Run, name: str) -> tuple[Series, np.ndarray]:
    """The samples of the window with a request waiting."""
    (figures,) = (c for c in analysed(run).cells if c.cell.backend == name)
    assert figures.window.span is not None
    waiting = run.series[name].values[names.WAITING].window(*figures.window.span)
    return waiting, waiting.v > 0


def test_slots(full: Run) -> None:
    """Tokens held are the server's own count; a slot has 2,048 tokens of 1,024 B."""
    row = analysed(full).scenario.fragmentation[1]
    times, mask = saturated(full, "contiguous")
    held = (
        full.series["contiguous"]
        .values[names.KV_TOKENS_HELD]
        .window(float(times.t_s[0]), float(times.t_s[-1]))
    )
    tokens = held.v[mask].mean()
    assert (row.cell.backend, row.policy, row.held_source) == ("contiguous", "max", "server")
    assert (row.samples, row.saturated) == (len(times), int(mask.sum()))
    assert row.saturated >= 5
    assert row.held == 8
    assert row.reserved_bytes == 8 * 2048 * 1024
    assert row.tokens_held == pytest.approx(tokens)
    assert row.share == pytest.approx(tokens / (8 * 2048))
    # 16 MiB are 8 slots: nothing is left over
    assert row.budget_share == pytest.approx(row.share)
    assert row.predicted is not None
    # p + k - 1 tokens over k = 1 ... 128: 512 + 63.5 of 2,048
    assert row.predicted.held == 8
    assert row.predicted.share == pytest.approx(575.5 / 2048)
    assert row.share is not None
    assert row.share == pytest.approx(575.5 / 2048, rel=0.05)


def test_blocks(full: Run) -> None:
    """Tokens held are counted by the client, bytes per token are the pool's 16 MiB / 16,384."""
    row = analysed(full).scenario.fragmentation[0]
    times, mask = saturated(full, "paged")
    used = (
        full.series["paged"]
        .values[names.KV_USED_BYTES]
        .window(float(times.t_s[0]), float(times.t_s[-1]))
    )
    assert (row.cell.backend, row.policy, row.held_source) == ("paged", "paged", "client")
    assert row.bytes_per_token == 1024
    assert row.reserved_bytes == pytest.approx(used.v[mask].mean())
    assert row.tokens_held is not None
    assert row.share == pytest.approx(row.tokens_held * 1024 / used.v[mask].mean())
    # 512 ... 639 tokens in 4 or 5 blocks of 128: between 512/512 and 513/640
    assert row.share is not None
    assert 0.85 < row.share < 1.0
    assert row.predicted is not None
    assert row.predicted.share == pytest.approx(row.share, abs=0.05)
    assert row.predicted.held >= 25


def test_the_order_of_the_paper(full: Run) -> None:
    paged, slots = analysed(full).scenario.fragmentation
    assert slots.share is not None
    assert paged.share is not None
    assert slots.share < paged.share


def test_the_predicted_rate_is_a_token_per_tpot(full: Run) -> None:
    summary = analysed(full)
    row = summary.scenario.fragmentation[1]
    tpot_s = summary.cells[1].latency.tpot_s.mean
    assert tpot_s is not None
    assert row.predicted_output_tokens_per_s == pytest.approx(8 / tpot_s)


def test_an_ordinary_run_has_no_such_rows() -> None:
    run = build_run(levels=(1,), min_requests=(5,))
    scenario = analysed(run).scenario
    assert not scenario.fragmentation
    assert not scenario.waterfalls


def test_without_waiting_requests_the_row_says_so() -> None:
    run = mixed(build_run(levels=(4,), min_requests=(100,)))
    for row in analysed(run).scenario.fragmentation:
        assert row.saturated == 0
        assert row.samples > 0
        assert row.share is not None


def test_what_was_not_measured_is_absent(full: Run) -> None:
    """Without the gauge of used blocks there is no share, and no zero."""
    series = dict(full.series)
    kept = {k: v for k, v in series["paged"].values.items() if k != names.KV_USED_BYTES}
    series["paged"] = replace_series(series["paged"])
    object.__setattr__(series["paged"], "values", kept)
    summary = analyse(full.manifest, full.records, full.events, series)
    row = summary.scenario.fragmentation[0]
    assert row.reserved_bytes is None
    assert row.share is None
    del series["paged"]
    row = analyse(full.manifest, full.records, full.events, series).scenario.fragmentation[0]
    assert (row.tokens_held, row.held, row.share, row.samples) == (None, None, None, 0)
    assert row.predicted is not None


def test_a_mode_without_a_simulation() -> None:
    info = static_info(mode="quantized")
    run = mixed(build_run([FakeServer(info, seats=8)], levels=(16,), min_requests=(50,)))
    (row,) = analysed(run).scenario.fragmentation
    assert row.policy is None
    assert row.predicted is None
    assert row.share is not None


def table(*records: tuple[float, float, int, int]) -> CellTable:
    """Requests as (sent, first token, prompt tokens, answer): then a token each second."""
    cell = CellKey("a", "paged", 4, 4, 2.0)
    builder = TableBuilder(cell)
    for seq, (sent_s, first_s, prompt, answer) in enumerate(records):
        gaps = (round((first_s - sent_s) * 1e6), *([1_000_000] * (answer - 1)))
        builder.add(
            record(
                cell,
                seq,
                t_intended_s=sent_s,
                t_sent_s=sent_s,
                t_end_s=first_s + answer - 1 + 0.1,
                token_us=gaps,
                prompt_tokens=prompt,
                output_tokens=answer,
            )
        )
    return builder.build()


def test_tokens_stored_by_hand() -> None:
    """Sent at 0, first token at 2 of 10 + 3: stored are 10 from 2 s on, 11 from 3 s. The second
    request, of 20 + 2, has its first token at 5 s: 20 are stored then.
    """
    made = table((0.0, 2.0, 10, 3), (0.5, 5.0, 20, 2))
    times = np.array([1.0, 2.5, 3.5, 4.5, 5.5, 7.5])
    assert tokens_stored(made, times, None).tolist() == [0, 10, 11, 0, 20, 0]
    # at 1 s one runs, the first that was sent; at 2.5 s another one has its prompt computed
    running = np.array([1.0, 2.0, 1.0, 1.0, 1.0, 0.0])
    assert tokens_stored(made, times, running).tolist() == [10, 30, 11, 20, 20, 0]


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("paged", Reservation("paged")),
        ("static", Reservation("max")),
        ("static/exact", Reservation("exact")),
        ("static/pow2", Reservation("pow2")),
        ("static/none", Reservation("max", single=True)),
        ("static-batching-none", Reservation("max", single=True)),
        ("static/exact/none", Reservation("exact", single=True)),
        ("dynamic", Reservation("padded")),
        ("dynamic/none", Reservation("padded", single=True)),
        ("dynamic/batch", None),
        ("off", None),
        ("quantized", None),
        ("default", None),
        ("static/what", None),
    ],
)
def test_modes(mode: str, found: Reservation | None) -> None:
    assert reservation_of(mode) == found


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("static/none", "static", "batching"),
        ("static", "static/exact", "reservation"),
        ("static/exact", "paged", "layout"),
        ("static/none", "static/exact", "batching + reservation"),
        ("static/none", "paged", "batching + layout"),
        ("static", "static", None),
        ("off", "paged", None),
    ],
)
def test_what_a_step_brings(before: str, after: str, what: str | None) -> None:
    assert change(before, after) == what


STEPS = (
    FakeServer(static_info(name="one", mode="static/none"), seats=1, tpot_s=0.005),
    FakeServer(static_info(name="batched"), seats=8, tpot_s=0.005),
    FakeServer(paged_info(), seats=25, tpot_s=0.005),
)


def test_a_waterfall_has_the_order_of_the_manifest() -> None:
    run = mixed(build_run(STEPS, levels=(32,), min_requests=(40,)), "decompose")
    (found,) = analysed(run).scenario.waterfalls
    assert [(s.backend, s.change) for s in found.steps] == [
        *(("one", None), ("batched", "batching"), ("paged", "layout")),
    ]
    assert [s.held for s in found.steps] == [1, 8, 25]
    rates = [s.output_tokens_per_s or 0.0 for s in found.steps]
    assert all(a < b for a, b in pairwise(rates))
    # one at a time: 1 / (5 ms + 0.4 ms of its own) without the pauses for a prompt
    assert rates[0] < 1 / 0.0054
    assert not found.budgets_differ
    simulated = [s.row.predicted.held if s.row.predicted else None for s in found.steps]
    assert simulated[:2] == [1, 8]


def test_other_budgets_are_no_decomposition() -> None:
    small = FakeServer(static_info(name="small", kv_budget_bytes=8 * MIB), seats=4)
    run = mixed(build_run([small, PAGED], levels=(32,), min_requests=(40,)), "decompose")
    (found,) = analysed(run).scenario.waterfalls
    assert found.budgets_differ


def test_each_level_has_its_waterfall() -> None:
    run = mixed(build_run((STATIC, PAGED), levels=(4, 32), min_requests=(20, 40)), "decompose")
    found = analysed(run).scenario.waterfalls
    assert [(item.level, len(item.steps)) for item in found] == [(4, 2), (32, 2)]


def test_rows_of_nothing_are_no_waterfall() -> None:
    run = build_run(levels=(1,), min_requests=(5,))
    rows: tuple[FragmentationRow, ...] = ()
    assert waterfalls(run.manifest, rows) == ()
    assert cell_of(PAGED, 1).backend == "paged"
