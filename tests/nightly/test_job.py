from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import NightlyError, StackError
from harness.nightly import outputs
from harness.nightly.history import History
from harness.nightly.job import night as job
from harness.nightly.job.harvest import Harvest, harvest
from harness.nightly.job.load import Loaded
from harness.nightly.job.plan import Repeat
from harness.nightly.night_types import Night
from tests.nightly.fake_night import TWO_RUNS, Fakes, FakeServers, suite_of
from tests.nightly.test_history_verb import damage


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path)


def gated(night: Night) -> dict[str, str]:
    return {i.verdict.metric: i.verdict.name for i in night.judged if i.verdict.gated}


def kinds(night: Night) -> list[str]:
    return [event.kind for event in night.events if event.kind != "preflight"]


def test_nights_seed_then_pass_then_find_a_slower_server(fakes: Fakes) -> None:
    seeding = [fakes.night() for _ in range(3)]
    assert [night.exit_code for night in seeding] == [2, 2, 2]
    # 3 nights are needed: after the first two more, after the third the next is judged
    words = [note.partition("baseline; ")[2] for note in fakes.progress.notes if "baseline" in note]
    assert words == ["2 more are needed", "1 more are needed", "the next night is judged"]
    assert fakes.night().exit_code == 0
    slow = fakes.night(slower=1.3)
    assert slow.exit_code == 1
    assert gated(slow) == {"ttft_p50_s": "regressed", "output_tokens_per_s": "regressed"}
    assert {(item.run, item.backend, item.model, item.level) for item in slow.alarms} == {
        ("short", "paged", "tiny", 4)
    }
    ttft = next(item for item in slow.alarms if item.verdict.metric == "ttft_p50_s")
    assert ttft.verdict.change == pytest.approx(0.3, abs=0.02)
    assert ttft.sight.regression is not None
    with History.open(fakes.ask().history) as history:
        assert [run.run_id for run in history.runs()][-1] == slow.night_id
        assert len(history.runs()) == 5


def test_figures_are_read_from_the_run_directories(fakes: Fakes) -> None:
    fakes.read = harvest
    night = fakes.night()
    assert {item.verdict.name for item in night.judged if item.verdict.tonight} == {
        "no comparable baseline"
    }
    folders = [fakes.folder / "results" / str(run.folder) for run in night.runs]
    assert all((folder / "report.html").is_file() for folder in folders)


def test_since_which_night_counts_those_that_were_kept_out(fakes: Fakes) -> None:
    for _ in range(9):
        fakes.night()
    first = fakes.night(slower=1.3)
    # one night alone is no step yet
    assert all(item.since is None for item in first.alarms)
    fakes.night(slower=1.3)
    third = fakes.night(slower=1.3)
    assert {item.since.night for item in third.alarms if item.since} == {first.night_id}
    # what is shown holds them, though they are in no baseline
    assert all(len(item.earlier) == 11 for item in third.alarms)
    assert all(len(item.series.baseline) == 9 for item in third.alarms)


def test_another_engine_version_has_no_baseline_and_says_so(fakes: Fakes) -> None:
    nights = [fakes.night() for _ in range(4)]
    other = fakes.night(engine="0.33.0")
    assert other.exit_code == 2 and set(gated(other).values()) == {"no comparable baseline"}
    assert other.setup_changes == (
        f"short/paged since {nights[-1].night_id}: backend.engine_version 0.32.0 (now 0.33.0)",
    )


def test_two_runs_take_turns_and_do_not_collide(fakes: Fakes) -> None:
    suite = suite_of(fakes.folder, TWO_RUNS.replace('kv_budget = "8MiB"', 'kv_budget = "16MiB"'))
    night = fakes.night(suite)
    assert fakes.load is not None
    # one stack: repeat 1 of both, repeat 2 of both ...
    assert fakes.load.did == [f"{name}-{i}" for i in (1, 2, 3) for name in ("short", "tight")]
    assert fakes.servers.did == ["start tiny 16MiB paged", "stop"]
    assert {(run.name, run.repeat) for run in night.runs} == {
        (name, i) for i in range(3) for name in ("short", "tight")
    }
    fakes.servers.did.clear()
    fakes.night(suite_of(fakes.folder, TWO_RUNS))
    # two budgets: two stacks, one after the other
    assert fakes.load.did == ["short-1", "short-2", "short-3", "tight-1", "tight-2", "tight-3"]
    assert fakes.servers.did == [
        *("start tiny 16MiB paged", "stop"),
        *("start tiny 8MiB paged", "stop"),
    ]
    with History.open(fakes.ask().history) as history:
        run_id = history.runs()[-1].run_id
        asked = {n: f["asked.kv_budget_bytes"] for n, f in history.setups(run_id).items()}
        assert asked == {"short/paged": 16 * 2**20, "tight/paged": 8 * 2**20}
        cells = {(item.cell, item.repeat) for item in history.figures(run_id)}
    names = ("short: paged 512+128 c4", "tight: paged 512+128 c4")
    assert {(name, i) for name in names for i in range(3)} <= cells


def test_a_crashed_server_is_restarted_once(fakes: Fakes) -> None:
    def crash(repeat: Repeat, again: bool) -> Loaded | None:
        if repeat.number == 1 and not again:
            fakes.servers.gone.add("paged")
            return Loaded(1, 5.0, None, "paged is lost")
        return None

    night = fakes.night(act=crash)
    assert fakes.load is not None
    assert fakes.load.did == ["short-1", "short-2", "short-2 again", "short-3"]
    assert fakes.servers.did.count("restart") == 1
    assert kinds(night) == ["server restarted"]
    assert [run.repeat for run in night.runs] == [0, 1, 2]
    assert night.exit_code == 2 and set(gated(night).values()) == {"no comparable baseline"}


def test_a_server_that_crashes_again_ends_its_run_and_no_other(fakes: Fakes) -> None:
    suite = suite_of(fakes.folder, TWO_RUNS.replace('kv_budget = "8MiB"', 'kv_budget = "16MiB"'))

    def crash(repeat: Repeat, again: bool) -> Loaded | None:
        if repeat.run.name == "short" and repeat.number == 1:
            fakes.servers.gone.add("paged")
            return Loaded(1, 5.0, None, "paged is lost")
        return None

    night = fakes.night(suite, act=crash)
    assert fakes.load is not None
    assert fakes.load.did == [
        *("short-1", "tight-1", "short-2", "short-2 again", "tight-2", "tight-3"),
    ]
    # the second start is for the run that still needs the stack
    assert kinds(night) == [
        "server restarted",
        *("run failed", "run failed"),
        "server restarted",
    ]
    # two repeats are too few, and named so; the other run is whole
    assert set(gated(night).values()) == {"insufficient samples"}
    other = {i.verdict.name for i in night.judged if i.run == "tight" and i.verdict.tonight}
    assert other == {"no comparable baseline"}


def test_servers_of_others_are_not_restarted(fakes: Fakes) -> None:
    fakes.servers = FakeServers(restartable=False)

    def crash(repeat: Repeat, again: bool) -> Loaded | None:
        if repeat.number == 1:
            fakes.servers.gone.add("paged")
        return None

    night = fakes.night(act=crash)
    assert fakes.load is not None
    assert fakes.load.did == ["short-1", "short-2"]
    assert "restart" not in fakes.servers.did and kinds(night) == ["run failed"]
    assert night.exit_code == 2


def test_a_load_that_fails_with_figures_is_recorded_and_the_rest_goes_on(fakes: Fakes) -> None:
    def fail(repeat: Repeat, again: bool) -> Loaded | None:
        assert fakes.load is not None
        return fakes.load.leave(repeat, 1, "2 % failed") if repeat.number == 0 else None

    night = fakes.night(act=fail)
    assert [run.exit_code for run in night.runs] == [1, 0, 0]
    assert [e.text for e in night.events if e.kind == "cell failed"] == [
        "short, repeat 1 of 3: exit code 1: 2 % failed"
    ]
    ttft = next(item.series for item in night.judged if item.verdict.gated).tonight
    assert ttft is not None and len(ttft.repeats) == 3


def test_a_stack_that_cannot_be_asked_for_does_not_lose_what_was_measured(fakes: Fakes) -> None:
    def refuse_the_second(repeat: Repeat, again: bool) -> Loaded | None:
        fakes.servers.refuse_start = NightlyError("--kv-budget: 1KiB is not valid")
        return None

    night = fakes.night(suite_of(fakes.folder, TWO_RUNS), act=refuse_the_second)
    assert kinds(night) == ["run failed"]
    assert "tight: the servers did not start: --kv-budget" in night.events[-1].text
    assert {run.name for run in night.runs} == {"short"} and night.exit_code == 2


def test_nothing_measured_is_a_failed_job_and_no_night(fakes: Fakes) -> None:
    with pytest.raises(NightlyError, match="nothing could be measured: short, repeat 1 of 3") as e:
        fakes.night(act=lambda *_: Loaded(2, 1.0, None, "error: --levels: wrong"))
    assert e.value.exit_code == 3
    fakes.servers.refuse_start = StackError("vllm died")
    with pytest.raises(NightlyError, match="the servers did not start: vllm died"):
        fakes.night()
    fakes.servers.refuse_start = NightlyError("the stack is up with other settings")
    with pytest.raises(NightlyError, match="other settings"):
        fakes.night()
    with History.open(fakes.ask().history) as history:
        assert history.runs() == ()


def test_a_server_of_another_version_in_the_middle_is_left_out(fakes: Fakes) -> None:
    def upgrade(repeat: Repeat, again: bool) -> Loaded | None:
        assert fakes.load is not None
        fakes.load.engine = "0.33" if repeat.number == 2 else "0.32"
        return None

    night = fakes.night(act=upgrade)
    said = [event.text for event in night.events if event.kind == "run failed"]
    assert len(said) == 1 and "repeat 3 of 3 does not count: short/paged is not what it" in said[0]
    assert gated(night)["ttft_p50_s"] == "insufficient samples"


def test_a_history_that_cannot_be_written_is_said_before_the_load(fakes: Fakes) -> None:
    fakes.ask().history.parent.mkdir(parents=True)
    fakes.ask().history.write_text("no database, though it is long enough to be read as one" * 40)
    with pytest.raises(NightlyError, match="not a history that can be opened"):
        fakes.night()
    assert fakes.servers.did == []


def test_a_damaged_history_is_said_before_the_load(fakes: Fakes) -> None:
    fakes.night()
    fakes.servers.did.clear()
    damage(fakes.ask().history)
    with pytest.raises(NightlyError, match=r"the history (is damaged|cannot be used)"):
        fakes.night()
    assert fakes.servers.did == []


@pytest.mark.parametrize("again", [False, True])
def test_a_history_that_was_removed_meanwhile_is_a_failed_job(fakes: Fakes, again: bool) -> None:
    def remove(repeat: Repeat, _: bool) -> None:
        fakes.ask().history.unlink(missing_ok=True)
        if again:
            fakes.ask().history.touch()

    with pytest.raises(NightlyError, match="was removed or replaced since it was opened"):
        fakes.night(act=remove)


def test_a_signal_after_the_night_was_stored_is_told_from_one_before(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outputs, "write", interrupt)
    with pytest.raises(KeyboardInterrupt) as error:
        fakes.night()
    with History.open(fakes.ask().history) as history:
        (run,) = history.runs()
    assert error.value.__notes__ == [
        f"the night is stored as {run.run_id}, its reports may be missing"
    ]


def test_a_load_that_leaves_nothing_and_says_nothing_is_put_into_words(fakes: Fakes) -> None:
    with pytest.raises(NightlyError) as error:
        fakes.night(act=lambda *_: Loaded(0, 1.0, None, ""))
    assert str(error.value).endswith("repeat 1 of 3: it left no run directory (exit code 0)")


def test_what_cannot_be_pruned_or_read_does_not_fail_the_night(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[str]:
        raise PermissionError(13, "Permission denied", "/elsewhere")

    def read(folder: Path, repeat: Repeat) -> Harvest:
        assert fakes.load is not None
        if repeat.number == 1:
            raise PermissionError(13, "Permission denied", str(folder))
        return fakes.load.read(folder, repeat)

    monkeypatch.setattr(job, "prune", refuse)
    fakes.read = read
    night = fakes.night()
    assert kinds(night) == ["run failed", "pruned"]
    assert all("Permission denied" in event.text for event in night.events[-2:])
    with History.open(fakes.ask().history) as history:
        assert [run.run_id for run in history.runs()] == [night.night_id]
