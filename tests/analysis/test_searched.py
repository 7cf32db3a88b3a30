"""What a search found is the verdict; what follows from a knee follows from that one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from harness.analysis.knee import judge_backend
from harness.analysis.level_verdict import judge_level
from harness.analysis.run import analyse
from harness.analysis.searched import searched_verdicts
from harness.analysis.summary_types import CellFigures
from harness.analysis.verdict_types import BackendVerdict, SloMiss
from harness.plan.knee_search import KneeSearch
from harness.plan.search_types import VERIFIED, Found, Searched, SearchGoal
from harness.records import LevelSummary
from harness.report.words import knee_text, prediction_text, verdict_line
from harness.workload import Slo
from tests.analysis.test_level_verdict import cell, counts
from tests.support.fake_server import PAGED, paged_info
from tests.support.run_builder import build_run

SLO = Slo(ttft_s=0.5, tpot_s=0.05)


@pytest.fixture(scope="module")
def template() -> CellFigures:
    run = build_run((PAGED,), (4,), (100,))
    return analyse(run.manifest, run.records, run.events, run.series).cells[0]


def waits(template: CellFigures, level: float, some: int, of: int, repeat: int = 0) -> CellFigures:
    """A level at which requests wait for KV memory in some of its samples."""
    kept = counts(starved=some, waits=some, samples=of)
    found = cell(template, "kv_memory" if some >= 0.1 * of else "free", kept, level)
    return replace(found, cell=msgspec.structs.replace(found.cell, repeat=repeat))


def by_levels(cells: Sequence[CellFigures], fit: int) -> BackendVerdict:
    """Of a server whose pool has 5 blocks for each of so many requests, and the null block."""
    return judge_backend(paged_info(num_blocks=5 * fit + 1), cells, SLO)


def search(cells: Sequence[CellFigures], *goals: SearchGoal) -> tuple[Found, ...]:
    """What the search says after these levels."""
    own = {item.cell: judge_level(item, SLO) for item in cells}
    asked = Searched("paged", "paged", None, goals or ("capacity",))
    done = [
        LevelSummary(cell=key, n_ok=100, n_failed=0, window_s=30.0, reason="complete")
        for key in own
    ]
    return KneeSearch((asked,), 512, 128, own.__getitem__).found(done)


def headline(cells: Sequence[CellFigures], fit: int, *goals: SearchGoal) -> BackendVerdict:
    (found,) = searched_verdicts([by_levels(cells, fit)], search(cells, *goals), cells)
    return found


def test_repeats_put_together_are_the_headline_too(template: CellFigures) -> None:
    """20: 3 of 20 samples (5 to 36 %) leave it open, 0 of 60 more do not."""
    cells = [
        waits(template, 19, 0, 60),
        waits(template, 20, 3, 20),
        waits(template, 20, 0, 60, repeat=1),
        waits(template, 21, 50, 60),
    ]
    one_by_one = by_levels(cells, fit=20)
    assert (one_by_one.capacity.last_good, one_by_one.capacity.first_bad) == (19.0, 20.0)
    assert one_by_one.prediction_holds is False
    shown = headline(cells, fit=20)
    for knee in (shown.capacity, shown.memory):
        assert (knee.status, knee.last_good, knee.first_bad) == ("bracketed", 20.0, 21.0)
        assert (knee.cause, knee.interval, knee.searched) == ("kv_memory", (20.0, 20.0), "found")
    assert shown.capacity.evidence == ("21: requests wait for KV memory in 50 of 60 samples",)
    assert shown.capacity.against == ("the pool is never more than 50 % full",)
    # 101 blocks hold 20 requests, so 21 should be bad, and it is
    assert shown.prediction_holds is True
    assert prediction_text(shown).endswith("so 21 should be the first bad level, and it is.")
    assert verdict_line(shown, SLO).startswith(
        "paged: holds 20 at 512+128 tokens (95 % interval 20-20 by the knee search), KV-bound, "
        "predicted 20; meets "
    )
    # nobody searched for the SLO's knee
    assert shown.latency == one_by_one.latency


def test_a_level_that_stays_undecided_is_not_held(template: CellFigures) -> None:
    """18: 2 of 25 samples, twice, are 8 %, from 3 to 19 %."""
    cells = [
        waits(template, 17, 0, 60),
        waits(template, 18, 2, 25),
        waits(template, 18, 2, 25, repeat=1),
        waits(template, 19, 50, 60),
    ]
    assert by_levels(cells, fit=17).capacity.last_good == 18.0
    assert by_levels(cells, fit=17).prediction_holds is False
    shown = headline(cells, fit=17)
    assert (shown.capacity.last_good, shown.capacity.first_bad) == (17.0, 19.0)
    assert shown.capacity.interval == (17.0, 18.0)
    assert (
        "holds 17 at 512+128 tokens (95 % interval 17-18 by the knee search, which is not sure)"
        in verdict_line(shown, SLO)
    )
    assert knee_text(shown.memory) == (
        "between 17 and 19, KV memory (95 % interval 17-18 by the knee search, which is not sure)"
    )
    # 18 should be bad, and what it is nobody knows
    assert shown.prediction_holds is None
    assert "cannot confirm" in prediction_text(shown)


def test_no_memory_knee_at_a_level_that_is_good(template: CellFigures) -> None:
    """Level by level one repeat of 20 waits for memory; seats are what limits, from 21 on."""
    seats = counts(seated=50, waits=50)
    cells = [
        waits(template, 19, 0, 60),
        waits(template, 20, 3, 20),
        waits(template, 20, 0, 60, repeat=1),
        cell(template, "scheduler_limit", seats, 21),
    ]
    assert by_levels(cells, fit=20).memory.first_bad == 20.0
    shown = headline(cells, fit=20)
    assert (shown.capacity.first_bad, shown.capacity.cause) == (21.0, "scheduler_limit")
    assert (shown.memory.status, shown.memory.last_good) == ("not_reached", 20.0)
    assert shown.memory.evidence == (
        "the knee search calls 20 good, all repeats of a level put together",
    )
    # without a knee of memory of the levels' own nothing changes
    plain = [waits(template, 20, 0, 60), cell(template, "scheduler_limit", seats, 21)]
    assert headline(plain, fit=20).memory == by_levels(plain, fit=20).memory


def test_the_slos_knee_is_the_searchs_with_what_was_missed(template: CellFigures) -> None:
    """16: 94 of 100 leave it open, 99 of 100 more do not."""
    shares = ((15, 0, 1.0), (16, 0, 0.94), (16, 1, 0.99), (17, 0, 0.5))
    cells = []
    for level, repeat, share in shares:
        rates = {"slo_attainment": share, "tpot_attainment": share}
        found = cell(template, level=level, **rates)
        cells.append(replace(found, cell=msgspec.structs.replace(found.cell, repeat=repeat)))
    one_by_one = by_levels(cells, fit=20)
    assert one_by_one.latency.last_good == 15.0
    assert one_by_one.slo_miss is not None
    assert one_by_one.slo_miss.level == 16.0
    shown = headline(cells, 20, "slo")
    assert (shown.latency.last_good, shown.latency.first_bad) == (16.0, 17.0)
    assert shown.slo_miss == SloMiss(17.0, 0.5, 100, ("TPOT",))
    assert shown.capacity == one_by_one.capacity
    low, high = shown.latency.interval or (None, None)
    assert verdict_line(shown, SLO).endswith(
        f"up to 16 (95 % interval {low:g}-{high:g} by the knee search)"
    )
    # the levels' own interval is another way to say it
    assert {b.knee for b in one_by_one.confidence.brackets} >= {"latency"}
    assert "latency" not in {b.knee for b in shown.confidence.brackets}


def made(**changed: object) -> Found:
    item = Found(
        "paged", "capacity", "found", 16.0, 32.0, 15.0, 18.0, "kv_memory", ("full",), ("but",)
    )
    return replace(item, **changed)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain(template: CellFigures) -> tuple[BackendVerdict, list[CellFigures]]:
    cells = [waits(template, 16, 0, 60), waits(template, 32, 50, 60)]
    return by_levels(cells, fit=25), cells


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "holds 16 at 512+128 tokens (95 % interval 15-18 by the knee search), KV-bound"),
        ({"low": None}, "(95 % interval 18 or fewer by the knee search)"),
        ({"high": None}, "(95 % interval 15 or more by the knee search)"),
        ({"low": None, "high": None}, "(knee between 16 and 32 by the knee search)"),
        (
            {"status": "budget", "low": None, "high": None},
            "(knee between 16 and 32 by the knee search, which was cut short)",
        ),
        (
            {"status": "not_reached", "first_bad": None, "high": None, "cause": None},
            "holds 16 at 512+128 tokens (no knee reached, 95 % interval 15 or more by the knee "
            "search), predicted",
        ),
        (
            {"status": "undecided", "first_bad": None, "low": None, "high": None},
            "holds 16 at 512+128 tokens (by the knee search, which is not sure), predicted",
        ),
        (
            {"status": "below_first", "last_good": None, "first_bad": 1.0},
            "does not hold 1, the lowest level judged, at 512+128 tokens (by the knee search), "
            "KV-bound",
        ),
        (
            {"status": "undecided", "last_good": None, "first_bad": 2.0},
            "does not hold 2, and no lower level is sure to be held, at 512+128 tokens (by the "
            "knee search, which is not sure)",
        ),
    ],
)
def test_every_end_of_a_search_in_the_headline(
    plain: tuple[BackendVerdict, list[CellFigures]], changed: dict[str, object], words: str
) -> None:
    verdict, cells = plain
    (shown,) = searched_verdicts([verdict], [made(**changed)], cells)
    assert words in verdict_line(shown, SLO)


def test_where_nothing_was_searched_the_levels_speak(
    plain: tuple[BackendVerdict, list[CellFigures]],
) -> None:
    verdict, cells = plain
    assert searched_verdicts([verdict], [made(backend="another")], cells) == (verdict,)
    assert searched_verdicts([verdict], [], cells) == (verdict,)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("undecided", "the knee search found no level surely good or bad"),
        ("budget", "the knee search was cut short before any level was surely good or bad"),
    ],
)
def test_where_nothing_is_sure_the_headline_holds_nothing(
    plain: tuple[BackendVerdict, list[CellFigures]], status: str, words: str
) -> None:
    verdict, cells = plain
    # by its few samples 16 is good
    assert verdict.capacity.last_good == 16.0
    nothing = made(status=status, last_good=None, first_bad=None, low=None, high=None)
    (shown,) = searched_verdicts([verdict], [nothing], cells)
    assert f"paged: no verdict on what it holds at 512+128 tokens ({words})" in verdict_line(
        shown, SLO
    )
    assert shown.memory.status == "no_verdict" and shown.prediction_holds is None


def test_an_slo_missed_from_the_first_level_on(
    plain: tuple[BackendVerdict, list[CellFigures]],
) -> None:
    verdict, cells = plain
    none = made(goal="slo", status="below_first", last_good=None, first_bad=16.0)
    (shown,) = searched_verdicts([verdict], [none], cells)
    # every request there met it, so there is no share to name
    assert verdict_line(shown, SLO).endswith(
        "; misses TTFT 500 ms and TPOT 50 ms even at 16 (by the knee search)"
    )


def test_what_was_verified_is_no_knee_of_its_own(
    plain: tuple[BackendVerdict, list[CellFigures]],
) -> None:
    verdict, cells = plain
    again = replace(verdict, variant=VERIFIED)
    assert len(searched_verdicts([verdict, again], [made()], cells)) == 1
    # a variant of that name without a search is somebody's own
    assert searched_verdicts([verdict, again], [], cells) == (verdict, again)
    other = replace(verdict, variant="half")
    assert searched_verdicts([other], [made()], cells) == (other,)
