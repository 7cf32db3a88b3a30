"""Through the modes with stand-in servers in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.modes.asked import parse_modes
from harness.modes.cli import run
from harness.modes.folder import read_kept
from harness.modes.measure import loaded, measure_modes
from harness.stack.options import UpOptions
from harness.stack.process import marked
from harness.stack.state import StackState, read_state, write_state
from tests.stack.conftest import Bench, Shown, bench, progress
from tests.support.fake_openai import FakeOpenAi, serve

__all__ = ["bench", "progress"]


def basis(bench: Bench) -> UpOptions:
    return UpOptions(
        home=bench.home, contiguous_port=bench.ports["contiguous"], start_timeout_s=30.0
    )


class FakeLoad:
    """Leaves a folder that looks like a run, and remembers the modes that were up."""

    def __init__(self, home: Path, code: int = 0) -> None:
        self.seen: list[str] = []
        self._home, self._code = home, code

    def __call__(self, url: str, place: Path) -> int:
        state = read_state(self._home)
        assert state is not None
        assert state.backends[0].url == url
        self.seen.append(str(state.settings["cache"]))
        (place / "run").mkdir(parents=True)
        (place / "run" / "manifest.json").write_text("{}")
        return self._code


def test_every_mode_gets_a_server_of_its_own(bench: Bench, progress: Shown, tmp_path: Path) -> None:
    load = FakeLoad(bench.home)
    modes = parse_modes("dynamic,static,off")
    measure_modes(modes, basis(bench), None, tmp_path, load, progress, bench.runtime())
    assert load.seen == ["dynamic", "static", "off"]
    assert [(kept.mode, kept.run, kept.reason) for kept in read_kept(tmp_path)] == [
        ("dynamic", "dynamic/run", None),
        ("static", "static/run", None),
        ("off", "off/run", None),
    ]
    assert read_state(bench.home) is None


def test_a_mode_refused_at_start_is_a_row_and_the_rest_go_on(
    bench: Bench, progress: Shown, tmp_path: Path
) -> None:
    bench.behaviours["contiguous"] = "dies"
    load = FakeLoad(bench.home)
    modes = parse_modes("dynamic,off")
    measure_modes(modes, basis(bench), None, tmp_path, load, progress, bench.runtime())
    assert load.seen == []
    assert {kept.reason for kept in read_kept(tmp_path)} == {
        "refused at start: ValueError: not enough memory for the KV cache"
    }


def test_a_load_that_fails_is_said(bench: Bench, progress: Shown, tmp_path: Path) -> None:
    load = FakeLoad(bench.home, code=1)
    measure_modes(parse_modes("off"), basis(bench), None, tmp_path, load, progress, bench.runtime())
    (kept,) = read_kept(tmp_path)
    assert (kept.run, kept.reason) == ("off/run", "the load ended with exit code 1")


def test_an_earlier_run_in_the_folder_is_not_taken_for_this_loads(tmp_path: Path) -> None:
    earlier = tmp_path / "off" / "earlier"
    earlier.mkdir(parents=True)
    (earlier / "manifest.json").write_text("{}")
    kept = loaded("off", "http://127.0.0.1:9", tmp_path, lambda url, place: 2)
    assert (kept.run, kept.reason) == (None, "the load ended with exit code 2, without a run")


def test_ctrl_c_keeps_what_was_measured_and_stops_the_server(
    bench: Bench, progress: Shown, tmp_path: Path
) -> None:
    marks: list[str] = []

    def pressed(url: str, place: Path) -> int:
        state = read_state(bench.home)
        assert state is not None
        marks.append(state.mark)
        if len(marks) == 2:
            raise KeyboardInterrupt
        return FakeLoad(bench.home)(url, place)

    modes = parse_modes("dynamic,static,off")
    with pytest.raises(KeyboardInterrupt):
        measure_modes(modes, basis(bench), None, tmp_path, pressed, progress, bench.runtime())
    assert [kept.mode for kept in read_kept(tmp_path)] == ["dynamic"]
    assert all(marked(mark) == [] for mark in marks)
    assert read_state(bench.home) is None


def test_a_stack_that_is_up_is_not_touched(bench: Bench, progress: Shown, tmp_path: Path) -> None:
    write_state(bench.home, StackState(mark="m", settings={}))
    with pytest.raises(UsageError, match="is up; run `kvknee down` first"):
        measure_modes(
            parse_modes("off"), basis(bench), None, tmp_path, FakeLoad(bench.home), progress
        )


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases = [
        (["--modes", "paged"], "--modes: 'paged' is not valid"),
        (["--prompt-tokens", "4000"], "--max-model-len: 2048 is fewer than"),
        (["--nonsense"], "No such option"),
        (["--url", "http://127.0.0.1:9"], "cannot be reached"),
    ]
    for arguments, words in cases:
        code = run([*arguments, "--results-dir", str(tmp_path), "--home", str(tmp_path / "home")])
        captured = capsys.readouterr()
        assert code == 2, captured.err
        assert words in captured.err
        assert len(captured.err.strip().splitlines()) == 1
    assert list(tmp_path.glob("*cache_modes")) == []


def test_another_kind_of_server_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serve(FakeOpenAi(version={"version": "0.32.0"})) as server:
        code = run(["--url", server.url, "--into", str(tmp_path / "into")])
    assert code == 2
    assert "is no contiguous server of kvknee" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for words in ("--modes", "--url", "--into", "Exit codes"):
        assert words in text
