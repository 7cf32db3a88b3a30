"""Several stacks side by side, with stand-in servers in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import OptionError, StackError, UsageError
from harness.stack.fleet import RESERVATIONS, STEPS, FleetMember, chosen, fleet
from harness.stack.health import answers
from harness.stack.options import UpOptions
from harness.stack.state import fleet_backends, read_state
from tests.stack.conftest import Bench, Shown

TWO = (STEPS[1], STEPS[3])


def test_names_choose_members_in_their_own_order() -> None:
    assert [m.name for m in chosen(STEPS, "paged,batched", "--servers")] == ["batched", "paged"]
    assert chosen(RESERVATIONS, "max,pow2,exact,paged", "--servers") == RESERVATIONS


@pytest.mark.parametrize("text", ["", "x", "paged,paged"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"--servers: .* one-at-a-time, batched, exact, paged"):
        chosen(STEPS, text, "--servers")


def test_one_server_each_and_none_left(bench: Bench, progress: Shown) -> None:
    with fleet(UpOptions(home=bench.home), TWO, progress, bench.runtime()) as urls:
        assert list(urls) == ["batched", "paged"]
        assert all(answers(url) for url in urls.values())
        running = fleet_backends(bench.home)
        assert {b.url: b.kind for b in running} == {
            urls["batched"]: "contiguous",
            urls["paged"]: "vllm",
        }
        # one model for all
        models = {(bench.home / "fleet" / name / "models").resolve() for name in urls}
        assert models == {(bench.home / "models").resolve()}
    assert fleet_backends(bench.home) == ()
    assert not any(answers(url) for url in urls.values())


def test_what_was_started_is_stopped_when_one_dies(bench: Bench, progress: Shown) -> None:
    bench.behaviours["paged"] = "dies"
    runtime = bench.runtime()
    with (
        pytest.raises(StackError, match="paged"),
        fleet(UpOptions(home=bench.home), TWO, progress, runtime),
    ):
        raise AssertionError("it must not get here")
    assert fleet_backends(bench.home) == ()


def test_a_second_fleet_of_the_same_home_leaves_the_first_ones_servers_alone(
    bench: Bench, progress: Shown
) -> None:
    with fleet(UpOptions(home=bench.home), TWO, progress, bench.runtime()) as urls:
        with (
            pytest.raises(UsageError, match="the stack is up"),
            fleet(UpOptions(home=bench.home), TWO, progress, bench.runtime()),
        ):
            raise AssertionError("it must not get here")
        assert all(answers(url) for url in urls.values())


def test_ctrl_c_stops_all(bench: Bench, progress: Shown) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        fleet(UpOptions(home=bench.home), TWO[:1], progress, bench.runtime()) as urls,
    ):
        raise KeyboardInterrupt
    assert not answers(urls["batched"])
    assert read_state(bench.home / "fleet" / "batched") is None


def test_the_members_differ_in_what_they_say(bench: Bench, progress: Shown) -> None:
    with fleet(UpOptions(home=bench.home), STEPS[:2], progress, bench.runtime()):
        modes = {
            name: (state.settings["batching"], state.settings["cache"])
            for name in ("one-at-a-time", "batched")
            if (state := read_state(bench.home / "fleet" / name)) is not None
        }
    assert modes == {"one-at-a-time": ("none", "static"), "batched": ("continuous", "static")}


def test_an_option_that_nobody_knows(bench: Bench, progress: Shown) -> None:
    odd = FleetMember("odd", {"backends": "paged", "colour": "red"})
    with (
        pytest.raises(UsageError, match=r"odd: .* \['colour'\]"),
        fleet(UpOptions(home=bench.home), (odd,), progress, bench.runtime()),
    ):
        raise AssertionError("it must not get here")


def test_a_home_that_cannot_be_written(tmp_path: Path, progress: Shown, bench: Bench) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match=r"--home: .* cannot be written"),
        fleet(UpOptions(home=tmp_path / "file"), TWO, progress, bench.runtime()),
    ):
        raise AssertionError("it must not get here")


def test_every_member_is_one_server() -> None:
    for member in (*STEPS, *RESERVATIONS):
        assert member.changes["backends"] in ("paged", "contiguous")
