"""Fits that find the truth they were made of, and say when they cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.fit_types import Fit
from harness.analysis.fits import fit, polynomial
from harness.analysis.fits_run import fit_cells
from harness.analysis.holdings import Moment
from harness.analysis.matching import Matched
from harness.analysis.reconcile_cells import RunCell
from harness.analysis.reconcile_layout import Expected
from harness.analysis.reconcile_theory import KvTheory, config_theory, stated_theory
from harness.analysis.reconcile_types import Unreconciled
from harness.analysis.table import build_tables
from harness.records import CellKey, RequestRecord
from tests.support.fake_records import cell_of, record
from tests.support.fake_server import PAGED, paged_info, static_info

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"


def test_exact_data_give_exact_terms_and_no_width() -> None:
    n = np.array([128.0, 512.0, 2048.0, 8192.0, 300.0, 1000.0])
    found = fit(polynomial(n, 2), 0.01 + 2e-5 * n + 3e-9 * n**2)
    assert found is not None
    for term, truth in zip(found.terms, (0.01, 2e-5, 3e-9), strict=True):
        assert term.value == pytest.approx(truth, rel=1e-6)
        assert term.high - term.low < 1e-4 * truth
    assert found.rms == pytest.approx(0.0, abs=1e-9)


def test_intervals_hold_the_truth_about_nineteen_times_in_twenty() -> None:
    # slopes of 200 noisy data sets: a 95 % interval misses some 10 of them; 30 points each make
    # percentile intervals a little short, so that 30 misses are the limit
    rng = np.random.default_rng(7)
    x = np.tile([100.0, 400.0, 1600.0], 10)
    held = 0
    for _ in range(200):
        found = fit(polynomial(x, 1), 5.0 + 0.01 * x + rng.normal(0.0, 1.0, x.size))
        assert found is not None
        held += found.terms[1].holds(0.01)
    assert 170 <= held < 200


def test_what_belongs_together_is_drawn_together() -> None:
    # 5 requests of 200 gaps, each with an offset of its own: as 1,000 gaps they would look sure
    rng = np.random.default_rng(1)
    request = np.repeat(np.arange(5), 200)
    x = np.arange(1000.0)
    y = x * 1e-3 + rng.normal(0.0, 1.0, 5)[request]
    apart, together = fit(polynomial(x, 1), y), fit(polynomial(x, 1), y, request)
    assert apart is not None
    assert together is not None
    widths = [f.terms[1].high - f.terms[1].low for f in (apart, together)]
    assert apart.terms[1].value == pytest.approx(together.terms[1].value)
    assert widths[1] > 3 * widths[0]


@pytest.mark.parametrize(
    "x", [np.full(20, 512.0), np.zeros(20), np.array([1.0, 2.0, 3.0])], ids=str
)
def test_what_cannot_be_told_apart_is_no_fit(x: np.ndarray) -> None:
    assert fit(polynomial(x, 1), np.ones(x.size)) is None


def cell(
    records: list[RequestRecord],
    level: float = 1,
    mode: str = "paged",
    moments: tuple[tuple[float, float, float], ...] = (),
    theory: KvTheory | None = None,
) -> RunCell:
    """A cell; ``moments`` are (requests, places, bytes in use)."""
    key = replace_cell(cell_of(PAGED, level), mode)
    known = theory or stated_theory(paged_info())
    matched = Matched(
        moments=tuple(
            Moment(0.0, np.full(int(n), places / n), np.ones(int(n)), np.zeros(int(n)),
                   np.zeros(int(n)), np.zeros(int(n)), int(n))
            for n, places, _ in moments
        ),
        expected=tuple(Expected(0.0, {}, places=places) for _, places, _ in moments),
        used=np.array([used for _, _, used in moments]),
        samples=len(moments),
    )  # fmt: skip
    own = [record(key, i, **_facts(r)) for i, r in enumerate(records)]
    table = build_tables(own or [record(key)])[key]
    return RunCell(
        info=paged_info() if mode == "paged" else static_info(mode=mode),
        table=table,
        counted=np.ones(table.n, dtype=np.bool_),
        alone=level == 1,
        theory=known,
        matched=matched if moments else None,
        explained=Unreconciled(key, "not of interest here"),
    )


def replace_cell(key: CellKey, mode: str) -> CellKey:
    return CellKey(key.backend, mode, key.prompt_tokens, key.output_tokens, key.level, key.repeat)


def _facts(one: RequestRecord) -> dict[str, object]:
    return {name: getattr(one, name) for name in ("prompt_tokens", "token_us", "output_tokens")}


def law(cells: list[RunCell], kind: str) -> Fit:
    (found,) = (item for item in fit_cells(cells) if item.kind == kind)
    return found


def test_c81_two_parameters_of_a_hybrid_come_out_of_its_bytes() -> None:
    # Jamba: 28 states a request, and 16,384 B per token of its 4 attention layers
    config = json.loads((CONFIGS / "jamba-v0.1.json").read_text())
    theory = config_theory(config, paged_info(dtype=None, max_model_len=8192))
    assert theory.token_bytes == 16_384
    states = theory.fixed_bytes
    rng = np.random.default_rng(5)
    moments = tuple(
        (float(n), n * tokens, n * states + 16_384.0 * n * tokens + rng.normal(0.0, 1e4))
        for n in (1, 4, 16)
        for tokens in np.linspace(200.0, 1400.0, 13)
    )
    found = law([cell([], moments=moments, theory=theory)], "kv_bytes")
    constant, slope = found.terms
    assert constant is not None
    assert slope is not None
    assert (found.expected_slope, found.expected_constant) == (16_384, states)
    assert slope.value == pytest.approx(16_384, rel=1e-3)
    assert constant.value == pytest.approx(states, rel=1e-3)
    assert found.slope_error == pytest.approx(0.0, abs=1e-3)
    assert slope.holds(16_384)
    assert slope.high - slope.low < 0.01 * 16_384


def test_slots_of_one_size_leave_the_constant_open() -> None:
    moments = tuple((float(n), n * 2048.0, n * 2048.0 * 1024) for n in range(1, 11))
    found = law([cell([], moments=moments, mode="static")], "kv_bytes")
    assert found.terms[0] is None
    assert found.expected_constant is None
    assert found.terms[1] is not None
    assert found.terms[1].value == pytest.approx(1024)
    assert found.n == 10


def test_a_moment_that_lies_at_a_blocks_edge_tells_nothing_of_the_slope() -> None:
    # blocks of 16: a request of 512 tokens fills its last for the client, and has one more
    full = [(float(n), n * 520.0, n * 520.0 * 1024) for n in (1, 2, 4, 8) for _ in range(3)]
    early = [(1.0, 512.0, 520.0 * 1024)] * 4
    found = law([cell([], moments=(*full, *early))], "kv_bytes")
    assert found.terms[0] is None
    assert found.terms[1] is not None
    assert found.terms[1].value == pytest.approx(1024)
    # edges are excluded only where others are left to fit
    assert law([cell([], moments=(*full[:4], *early))], "kv_bytes").n == 8


def test_a_slope_never_hangs_on_one_moment() -> None:
    # one of 40 differs, and by what the server got wrong: two columns would fit it exactly
    alike = [(1.0, 640.0, 640.0 * 1024)] * 39
    found = law([cell([], moments=(*alike, (1.0, 700.0, 640.0 * 1024)))], "kv_bytes")
    assert found.terms[0] is None
    assert found.terms[1] is not None
    assert found.terms[1].value == pytest.approx(1024, rel=0.01)


def test_too_few_moments_are_no_fit() -> None:
    moments = tuple((float(n), n * 600.0, n * 600.0 * 1024) for n in (1, 2, 3))
    found = law([cell([], moments=moments)], "kv_bytes")
    assert found.terms == ()
    assert found.absent == "3 moments with tokens held; 8 are needed"


def timed(prompt: int, ttft_s: float, gap_s: float, tokens: int = 33) -> RequestRecord:
    gaps = [round(gap_s * 1e6)] * (tokens - 1)
    return record(
        cell_of(PAGED, 1),
        prompt_tokens=prompt,
        token_us=(round(ttft_s * 1e6), *gaps),
        output_tokens=tokens,
    )


def test_ttft_shows_prefills_square_and_tpot_the_context() -> None:
    # TTFT 10 ms + 20 us n + 3 ns n^2; TPOT 4 ms + 0.5 us x (prompt + 33 / 2)
    records = [
        timed(n, 0.01 + 2e-5 * n + 3e-9 * n**2, 0.004 + 5e-7 * (n + 16.5))
        for n in (128, 512, 2048, 8192)
        for _ in range(3)
    ]
    cells = [cell(records), cell([timed(512, 9.0, 9.0)], level=16)]
    ttft, tpot = law(cells, "ttft"), law(cells, "tpot")
    # the level of 16 says more of the batch than of the length: it is left out
    assert (ttft.n, ttft.lengths) == (12, (128, 8192))
    # times are kept in whole microseconds
    assert [t.value for t in ttft.terms if t] == pytest.approx([0.01, 2e-5, 3e-9], rel=1e-3)
    assert [t.value for t in tpot.terms if t] == pytest.approx([0.004, 5e-7], rel=1e-2)


@pytest.mark.parametrize(
    ("lengths", "level", "words"),
    [
        ((512,), 1, "1 length at one"),
        # four lengths, the longest not four times the shortest
        ((500, 600, 700, 800), 1, "the longest 4 times the shortest"),
        ((128, 512, 2048, 8192), 4, "no level with one request at a time"),
    ],
)
def test_lengths_that_cannot_tell_give_a_reason(
    lengths: tuple[int, ...], level: float, words: str
) -> None:
    found = law([cell([timed(n, 0.1, 0.01) for n in lengths], level=level)], "ttft")
    assert found.terms == ()
    assert found.absent is not None
    assert words in found.absent


def test_without_a_cache_each_token_costs_more_than_the_last() -> None:
    # 1 ms + 10 us per token of context: gaps of 6.13 ms after 513 tokens, 6.14 ms after 514, ...
    prompt, count = 512, 129
    gaps = [round(1000 + 10 * (prompt + k)) for k in range(1, count)]
    one = record(cell_of(PAGED, 1), token_us=(6000, *gaps), output_tokens=count)
    found = law([cell([one] * 6, mode="off")], "cache_off")
    assert [t.value for t in found.terms if t] == pytest.approx([1e-3, 1e-5])
    assert found.lengths == (513, 640)
    assert found.n == 6 * 128
    short = record(cell_of(PAGED, 1), token_us=(6000, *gaps[:64]), output_tokens=65)
    assert "a factor of 1.2" in (law([cell([short] * 6, mode="off")], "cache_off").absent or "")
    # with a cache that law is not asked for, and without one no bytes are
    assert {f.kind for f in fit_cells([cell([one], mode="off")])} == {"cache_off", "ttft", "tpot"}
    assert {f.kind for f in fit_cells([cell([one])])} == {"kv_bytes", "ttft", "tpot"}


def test_runs_put_together_are_fitted_as_one() -> None:
    parts = [cell([timed(n, 0.01 + 1e-5 * n, 0.01)] * 3) for n in (100, 300, 900, 2700)]
    assert law(parts[:3], "ttft").absent is not None
    assert law(parts, "ttft").absent is None
    assert replace(parts[0], alone=False).alone is False
