"""Which modes, and how each is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import OptionError
from harness.modes.asked import ALL_MODES, BASELINE, NAMES, Load, parse_modes
from harness.modes.running import mode_name
from harness.stack.launches import plan_launches
from harness.stack.options import UpOptions, plan_stack


def test_the_order_is_the_tables_and_the_baseline_is_the_first() -> None:
    assert [mode.name for mode in parse_modes("off,quantized-4,dynamic")] == [
        "dynamic",
        "quantized-4",
        "off",
    ]
    assert NAMES[0] == BASELINE


@pytest.mark.parametrize("text", ["", "paged", "off,off", "quantized"])
def test_unknown_modes_are_named_with_the_right_ones(text: str) -> None:
    with pytest.raises(OptionError, match=r"--modes: .* expected some of dynamic,static"):
        parse_modes(text)


def test_every_mode_reaches_the_server_as_its_flags(tmp_path: Path) -> None:
    basis = UpOptions(home=tmp_path, kv_budget="16MiB")
    for mode in ALL_MODES:
        plan = plan_stack(mode.options(basis, 64), gpu_present=False)
        (launch,) = plan_launches(plan, {})
        command = list(launch.command)
        for flag, value in zip(mode.flags(64)[::2], mode.flags(64)[1::2], strict=True):
            assert command[command.index(flag) + 1] == value
        assert ("--sliding-window" in command) == (mode.name == "sliding")
        assert ("--kv-bits" in command) == mode.name.startswith("quantized")


def test_the_load_is_the_concurrency_scenarios() -> None:
    load = Load("1,4", 512, 64, "20", "60", 7, "300")
    arguments = load.arguments("http://127.0.0.1:9", Path("out"))
    assert arguments[arguments.index("--levels") + 1] == "1,4"
    assert arguments[arguments.index("--backends") + 1] == "contiguous=http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"cache": "quantized", "kv_bits": 4}, "quantized-4"),
        ({"cache": "off", "kv_bits": None}, "off"),
        # a server from before there was more than this
        ({"mode": "static"}, "static"),
    ],
)
def test_a_running_server_tells_its_mode(facts: dict[str, object], name: str) -> None:
    assert mode_name(facts) == name
