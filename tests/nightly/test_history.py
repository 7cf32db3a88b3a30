from __future__ import annotations

import random
import select
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.run import analyse
from harness.errors import UsageError
from harness.nightly.baseline import tonight_series
from harness.nightly.figures import StoredFigure, run_figures
from harness.nightly.gate import judge
from harness.nightly.gate_types import GateLimits, Reading
from harness.nightly.history import History, StoredRun
from harness.nightly.history_schema import MIGRATIONS
from harness.nightly.setup import differing, setup_facts, setup_hash
from harness.records import Scalar
from tests.nightly.kill_writer import FIGURES
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run, replace_manifest

CELL, METRIC = "paged 512+128 c4", "ttft_p50_s"
SETUP: dict[str, Scalar] = {"hardware.gpus": "n150", "backend.engine_version": "0.32"}
PRIMARY = {(CELL, METRIC)}


def figures(value: float | None) -> list[StoredFigure]:
    return [
        StoredFigure("paged", CELL, METRIC, i, None if value is None else value * f, 600)
        for i, f in enumerate((0.995, 1.0, 1.005))
    ]


def store(
    history: History,
    night: int,
    value: float | None,
    setup: dict[str, Scalar] | None = None,
) -> str:
    """Judge a night against those before it, and store both; returns the gated verdict."""
    setups = {"paged": setup or SETUP}
    name = f"n{night:02}"
    series = tonight_series(history, "s", name, float(night), setups, figures(value), PRIMARY)
    verdicts = judge(series, GateLimits())
    history.store(StoredRun(name, "s", float(night), "1"), setups, figures(value), verdicts)
    return verdicts[0].name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def test_nights_seed_a_baseline_then_pass_then_fail(path: Path) -> None:
    with History.open(path) as history:
        said = [store(history, i, 0.1 if i % 2 else 0.101) for i in range(8)]
        assert said == ["no comparable baseline"] * 5 + ["ok"] * 3
        assert [store(history, i, 0.13) for i in (8, 9)] == ["regressed"] * 2
        # neither has entered the baseline
        assert store(history, 10, 0.1005) == "ok"
        # until one is accepted: then nights before it count no more
        history.mark("n09", "baseline", "a slower but safer sampler", at_wall_s=10.5)
        assert store(history, 11, 0.13) == "no comparable baseline"


def test_nights_that_an_old_baseline_judged_count_for_a_new_one(path: Path) -> None:
    with History.open(path) as history:
        for i in range(8):
            store(history, i, 0.1 if i % 2 else 0.101)
        assert [store(history, i, 0.13) for i in range(8, 13)] == ["regressed"] * 5
        history.mark("n08", "baseline", "a slower but safer sampler", at_wall_s=12.5)
        # five nights of 130 ms: enough, and no weekend is lost
        assert store(history, 13, 0.13) == "ok"
        # what is worse than the new one is kept out as ever
        assert [store(history, i, 0.17) for i in (14, 15)] == ["regressed"] * 2
        assert [item.night for item in baseline(history)] == [f"n{i:02}" for i in range(8, 14)]
        history.mark("n08", "", None)
        assert [item.night for item in baseline(history)][-2:] == ["n07", "n13"]


def test_a_mark_on_a_night_of_another_engine_leaves_this_ones_nights(path: Path) -> None:
    with History.open(path) as history:
        for i in range(8):
            store(history, i, 0.1 if i % 2 else 0.101)
        store(history, 8, 0.2, {**SETUP, "backend.engine_version": "0.33"})
        history.mark("n08", "baseline", "the new engine", at_wall_s=8.5)
        # back to the old engine: its own nights are there
        assert store(history, 9, 0.1005) == "ok"
        assert next(item.night for item in baseline(history)) == "n00"


def baseline(history: History) -> tuple[Reading, ...]:
    series = tonight_series(history, "s", "x", 99.0, {"paged": SETUP}, figures(0.1), PRIMARY)
    return series[0].baseline


def test_another_engine_or_machine_has_no_baseline(path: Path) -> None:
    # E104: the key holds the GPU and the engine's version
    with History.open(path) as history:
        for i in range(8):
            store(history, i, 0.1)
        for key, value in (("hardware.gpus", "p150"), ("backend.engine_version", "0.33")):
            other = {**SETUP, key: value}
            found = tonight_series(
                history, "s", "x", 99.0, {"paged": other}, figures(0.1), PRIMARY
            )[0]
            assert (found.baseline, found.other_nights) == ((), 8)
            assert judge([found], GateLimits())[0].name == "no comparable baseline"
            assert len(differing(SETUP, other)) == 1
            assert setup_hash(SETUP) != setup_hash(other)


def test_a_bad_night_and_a_missing_figure_are_in_no_baseline(path: Path) -> None:
    # D93: a failed scrape is null, and no reading of zero
    with History.open(path) as history:
        for i, value in enumerate((0.1, 0.1, None, 0.1)):
            store(history, i, value)
        history.mark("n00", "bad", "the machine was not idle")
        series = tonight_series(history, "s", "x", 9.0, {"paged": SETUP}, figures(None), PRIMARY)
        assert [item.night for item in series[0].baseline] == ["n01", "n03"]
        assert series[0].tonight is None
        assert [f.value for f in history.figures("n02")] == [None] * 3


def test_a_run_is_stored_once_and_whole(path: Path) -> None:
    with History.open(path) as history:
        store(history, 1, 0.1)
        twice = [*figures(0.1), figures(0.1)[0]]
        for name, rows in (("n01", figures(0.1)), ("n02", twice)):
            with pytest.raises(UsageError, match=f"run {name} cannot be stored"):
                history.store(StoredRun(name, "s", 2.0, "1"), {}, rows)
        assert [item.run_id for item in history.runs()] == ["n01"]


def test_an_older_file_is_brought_up_to_date_and_a_newer_refused(path: Path) -> None:
    old = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        old.execute(statement)
    old.execute("INSERT INTO runs VALUES ('n00', 's', 0.0, '1', '')")
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    with History.open(path) as history:
        assert history.runs() == (StoredRun("n00", "s", 0.0, "1"),)
    new = sqlite3.connect(path)
    new.execute("PRAGMA user_version = 99")
    new.commit()
    new.close()
    with pytest.raises(UsageError, match="is of history schema 99"):
        History.open(path)


def test_a_killed_writer_leaves_no_half_written_run(path: Path) -> None:
    draw = random.Random(8)
    start = 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.nightly.kill_writer", str(path), str(start)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        # a moment of its writing: it ends with the child, or after this long
        select.select([child.stdout], [], [], draw.uniform(0.0, 0.1))
        child.kill()
        child.wait()
        child.stdout.close()
        with History.open(path) as history:
            runs = history.runs()
            assert all(len(history.figures(item.run_id)) == FIGURES for item in runs)
            assert all(history.setups(item.run_id) for item in runs)
            assert list(history.rows("PRAGMA integrity_check")) == [("ok",)]
            orphans = "SELECT COUNT(*) FROM figures WHERE run_id NOT IN (SELECT run_id FROM runs)"
            assert list(history.rows(orphans)) == [(0,)]
        start = len(runs)
    assert start > 0


def test_a_run_gives_its_figures() -> None:
    run = build_run((PAGED,), (4,), (20,))
    summary = analyse(run.manifest, run.records, run.events, run.series)
    found = {(item.cell, item.metric): item for item in run_figures(summary)}
    cell = summary.cells[0]
    p50 = found[CELL, "ttft_p50_s"]
    assert (p50.value, p50.requests) == (cell.latency.ttft_s.earned(50), cell.latency.ttft_s.n)
    # too few requests for it
    assert found[CELL, "ttft_p99_s"].value is None
    assert found[CELL, "failure_rate"].value == 0.0
    assert ("paged 512+128", "memory_knee") in found
    # no scrape, no bytes
    silent = replace(summary, cells=(replace(cell, memory=None),))
    bytes_each = [f for f in run_figures(silent) if f.metric == "kv_bytes_per_token"]
    assert [item.value for item in bytes_each] == [None]


def test_the_setup_holds_what_was_asked_not_what_came_of_it() -> None:
    run = build_run((PAGED,), (4,), (20,))
    facts = {"paged.engine_version": "1", "paged.num_blocks": 128, "hardware.gpus": "n150"}
    manifest = replace_manifest(run.manifest, fingerprint=facts)
    found = setup_facts(manifest, "paged", {"kv_budget_bytes": 1024})
    assert found["backend.engine_version"] == "1" and found["hardware.gpus"] == "n150"
    assert found["asked.kv_budget_bytes"] == 1024
    assert not any("num_blocks" in name for name in found)


def test_a_few_kib_of_memory_more_are_no_other_machine() -> None:
    run = build_run((PAGED,), (4,), (20,))
    found = [
        setup_hash(
            setup_facts(
                replace_manifest(
                    run.manifest, fingerprint={"hardware.memory_bytes": size, "hardware.cores": n}
                ),
                "paged",
            )
        )
        for size, n in ((2**34, 8), (2**34 - 4096, 8), (2**34, 16))
    ]
    assert found[0] == found[1] != found[2]


def test_a_night_waits_longer_for_another_writer_than_a_mark(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.nightly.history._WAIT_S", 0.05)
    with History.open(path) as history:
        store(history, 0, 0.1)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    busy = pytest.raises(UsageError, match="another program writes to it: try again")
    with busy, History.opened(path) as history:
        history.mark("n00", "bad", "x")
    threading.Timer(0.3, other.rollback).start()
    with History.opened(path) as history:
        store(history, 1, 0.1)
        assert [(run.run_id, run.mark) for run in history.runs()] == [("n00", ""), ("n01", "")]
    other.close()
