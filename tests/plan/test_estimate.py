"""The estimate of a cell's time: from probes, and from cells that are done."""

from __future__ import annotations

import pytest

from harness.plan.estimate import CellTimes, Probe, Speed, about
from harness.records import CellKey, LevelSummary


def cell(prompt: int, output: int, level: float, backend: str = "a") -> CellKey:
    return CellKey(backend, "paged", prompt, output, level)


def done(key: CellKey, took_s: float) -> LevelSummary:
    return LevelSummary(
        cell=key, n_ok=1, n_failed=0, window_s=1.0, reason="complete", took_s=took_s
    )


def test_two_probes_tell_fixed_time_prefill_and_decode() -> None:
    """0.02 s + 100 x 0.001 = 0.12 s, 0.02 + 500 x 0.001 = 0.52 s."""
    speed = Speed.of([Probe(500, 0.52, 0.03), Probe(100, 0.12, 0.01)])
    assert speed is not None
    assert speed.prefill_s_per_token == pytest.approx(0.001)
    assert speed.fixed_s == pytest.approx(0.02)
    assert speed.tpot_s == pytest.approx(0.02)
    # 4 users: 4 x 200 x 0.001 + 0.02 + 10 x 0.02
    assert speed.round_s(4, 200, 11) == pytest.approx(1.02)


def test_one_probe_and_none() -> None:
    assert Speed.of([]) is None
    assert Speed.of([Probe(100, 0.1, None)]) == Speed(0.1, 0.0, 0.0)


def test_a_faster_long_prompt_gives_no_negative_prefill() -> None:
    speed = Speed.of([Probe(100, 0.3, 0.01), Probe(500, 0.1, 0.01)])
    assert speed is not None
    assert (speed.prefill_s_per_token, speed.fixed_s) == (0.0, 0.3)


def test_a_long_level_is_cut_at_its_limit_and_ends_with_one_round() -> None:
    """A round of 10 s, 100 requests at level 1: cut at 60 s, then one round: 70 s."""
    times = CellTimes({"a": Speed(10.0, 0.0, 0.0)}, {1.0: 100}, 5.0, 60.0)
    assert times.cell_s(cell(8, 1, 1)) == pytest.approx(70.0)


def test_done_cells_correct_the_rest_those_of_the_same_level_first() -> None:
    """A round is 1 s; 4 requests: level 1 takes 1 + 4 + 1, level 2 takes 1 + 2 + 1."""
    times = CellTimes({"a": Speed(1.0, 0.0, 0.0)}, {1.0: 4, 2.0: 4}, 0.0, 60.0)
    assert times.cell_s(cell(8, 1, 1)) == pytest.approx(6.0)
    first = done(cell(8, 1, 1), 12.0)
    # twice as long as expected, and so will the other level be
    assert times.cell_s(cell(8, 1, 2), [first]) == pytest.approx(8.0)
    own = done(cell(9, 1, 2), 20.0)
    assert times.cell_s(cell(8, 1, 2), [first, own]) == pytest.approx(20.0)
    # another server's time says nothing
    other = done(cell(8, 1, 1, "b"), 600.0)
    assert times.cell_s(cell(8, 1, 1), [other]) == pytest.approx(6.0)


def test_without_a_speed_the_median_of_what_was_done_is_all_there_is() -> None:
    times = CellTimes({}, {}, 0.0, 60.0)
    assert times.cell_s(cell(8, 1, 1)) is None
    assert times.cell_s(cell(8, 1, 1), [done(cell(8, 1, 2), 3.0)]) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (7200.0, "2.0 h")]
)
def test_no_more_digits_than_an_estimate_has(seconds: float, text: str) -> None:
    assert about(seconds) == text
