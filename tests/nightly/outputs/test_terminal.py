"""The night in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from harness.nightly.night_types import Night
from harness.nightly.outputs.terminal import show
from tests.nightly.outputs.nights import NIGHTS, Asked, hostile_night, night, whole_night


def shown(made: Night, width: int = 80, **options: object) -> str:
    out = io.StringIO()
    show(made, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("name", NIGHTS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_night_fits(name: str, width: int) -> None:
    lines = shown(NIGHTS[name](), width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert lines[0].split(":")[0] in {"OK", "REGRESSED", "NO VERDICT", "FAILED"}


def test_a_whole_night() -> None:
    text = shown(whole_night())
    assert text.startswith("REGRESSED: short contiguous 512+64 c16: TTFT p95 +25")
    for part in (
        *("insufficient", "no comparable", "unstable", "improved?", "Moved, not gated (2)"),
        *("18 others, not gated", "Events (5)", "server restarted: paged died (signal 9)"),
        *("another setup: short contiguous: backend.engine_version 5.23 (now 5.24)",),
        *("Smallest regression that this history can see", "kvknee history baseline"),
    ):
        assert part in text, part
    # tonight 0.495 x 1.25 s = 619 ms, in a row of two lines
    row = next(line for line in text.splitlines() if "619" in line and "regressed" in line)
    assert row.split()[-7:] == ["619", "494", "+25.2", "%", "+5.0", "%", "regressed"]


def test_colour_says_nothing_that_words_do_not() -> None:
    plain = shown(whole_night())
    coloured = shown(whole_night(), force_terminal=True, color_system="standard")
    assert "\x1b[" in coloured and "\x1b[" not in plain
    assert "regressed" in plain and "REGRESSED" in plain


def test_text_of_servers_is_no_markup() -> None:
    text = shown(hostile_night(), 200)
    assert "\\x1b[31m\\u202e\\ud800" in text
    assert all(char.isprintable() or char == "\n" for char in text)


def test_brackets_of_a_name_are_no_style() -> None:
    text = shown(night([Asked(run="[bold red]x[/]")], exit_code=0), 120)
    assert "[bold red]x[/] paged" in text
