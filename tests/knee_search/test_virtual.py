"""A part of the proof: servers in virtual time, and the oracle against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.knee_search.cases import KINDS, ONE_WITHOUT, case
from tests.knee_search.oracle import level_is_bad, truth_of
from tests.knee_search.virtual_search import sweep_levels
from tests.knee_search.virtual_table import Row, main, row, total, totals
from tests.test_import_direction import forbidden

HERE = Path(__file__).parent


def test_forty_servers() -> None:
    """Of 32 with a knee 95 % are 30.4: two may be wrong; of 8 without none."""
    found = total("all", [row("subset", number) for number in range(40)])
    assert (found.with_knee, found.without) == (32, 8)
    assert found.missed == []


def test_a_draw_is_the_same_each_time_and_one_in_five_has_no_knee() -> None:
    items = [case("dev", number) for number in range(40)]
    assert items == [case("dev", number) for number in range(40)]
    assert {item.kind for item in items} == set(KINDS)
    assert sum(item.max_level < item.aim for item in items) == 40 // ONE_WITHOUT


def test_the_oracle_finds_the_slots() -> None:
    """So many slots hold so many requests. Only of a few: a slot is empty from a request's end
    to the next step, and with many slots one user more than slots hardly ever waits."""
    items = [case("slots", number) for number in range(1, 100, 5)]
    few = [item for item in items if item.model.slots <= 8]
    assert len(few) >= 4
    for item in few:
        assert item.kind == "contiguous"
        truth = truth_of(item)
        assert (truth.last_good, truth.cause) == (item.model.slots, "kv_memory")


def test_the_oracle_finds_the_seats_and_the_whole_pool() -> None:
    seats = case("seats", 2)
    assert seats.kind == "scheduler"
    few = replace(
        seats, model=replace(seats.model, max_num_seqs=5), aim=5, max_level=20, start=None
    )
    assert truth_of(few).last_good == 5
    assert truth_of(few).cause == "scheduler_limit"
    pool = case("pool", 0)
    assert pool.kind == "paged"
    each = pool.model.blocks(pool.law.prompt_tokens + pool.law.longest)
    # blocks for five whole requests surely hold five; prompts alone of so many do not fit
    prompt = pool.model.blocks(pool.law.prompt_tokens)
    small = replace(pool, model=replace(pool.model, num_blocks=5 * each + 1), max_level=99)
    assert not level_is_bad(small, 5)
    assert level_is_bad(small, 5 * each // prompt + 2)


def test_the_oracle_owes_nothing_to_the_analysis() -> None:
    assert forbidden(HERE / "oracle.py", {"harness"}) == []
    assert forbidden(HERE / "cases.py", {"harness.analysis"}) == []


def test_a_sweep_of_the_same_resolution() -> None:
    # one by one to 40, whose 5 % are two, and so on
    assert sweep_levels(5, 0.05) == [1, 2, 3, 4, 5]
    assert sweep_levels(46, 0.05)[-4:] == [40, 42, 44, 46]


def right(**changes: object) -> Row:
    facts: dict[str, object] = {
        "name": "r", "kind": "paged", "truth": 100, "true_cause": "kv_memory", "status": "found",
        "last_good": 96.0, "first_bad": 101.0, "low": 96.0, "high": 100.0, "cause": "kv_memory",
        "levels": 4, "level_s": 4.0, "sweep_s": 10.0,
    }  # fmt: skip
    return Row(**(facts | changes))  # type: ignore[arg-type]


def test_what_counts_as_right() -> None:
    assert right().within
    assert right(last_good=95.0).within
    assert not right(last_good=94.0).within
    assert right(truth=1, last_good=None, first_bad=1.0).within
    assert not right(status="not_reached", first_bad=None).within
    assert right().covered
    assert right(high=None).covered
    assert not right(high=99.0).covered
    assert not right(low=101.0).covered


def test_a_limit_that_is_missed_is_named() -> None:
    wrong = right(last_good=50.0, cause="compute", low=50.0, high=52.0, level_s=9.0)
    assert total("all", [wrong]).missed == ["within", "covered", "cause", "of_sweep"]
    invented = right(truth=None, true_cause=None)
    assert total("all", [right(), invented]).missed == ["not_invented"]
    assert totals([right()])[-1].missed == []


def test_parts_are_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [tmp_path / "a.json", tmp_path / "b.json"]
    for number, path in enumerate(parts):
        arguments = ["--family", "dev", "--first", str(number), "--servers", "1"]
        assert main([*arguments, "--json", str(path)]) in (0, 1)
    capsys.readouterr()
    main(["--join", *map(str, parts)])
    last = capsys.readouterr().out.splitlines()[-2]
    assert last.split()[:3] == ["all", "2", "0"]
