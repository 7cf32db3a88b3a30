"""The night as Markdown."""

from __future__ import annotations

import re

import pytest

from harness.nightly.outputs.markdown import markdown_night
from tests.nightly.outputs.nights import NIGHTS, hostile_night, interrupted_night, whole_night

#: a bar that divides cells
_BAR = re.compile(r"(?<!\\)\|")


@pytest.mark.parametrize("name", NIGHTS)
def test_every_table_has_rows_of_one_width(name: str) -> None:
    text = markdown_night(NIGHTS[name]())
    tables: list[list[int]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            tables[-1].append(len(_BAR.findall(line)))
        elif tables[-1]:
            tables.append([])
    assert all(len(set(table)) == 1 for table in tables if table)


def test_a_whole_night() -> None:
    text = markdown_night(whole_night())
    lines = text.splitlines()
    assert lines[0] == "# kvknee nightly: gpu"
    assert lines[2].startswith("**REGRESSED**: short contiguous 512+64 c16: TTFT p95 +25")
    assert "| short contiguous 512+64 c16 | TTFT p95 ms | regressed | 619 | 494 | +25.2 % |" in text
    assert text.count("\n## ") == 5


def test_what_servers_sent_is_escaped() -> None:
    text = markdown_night(hostile_night())
    assert "<" not in text and "\\`b\\_\\*" in text and "&lt;script&gt;" in text
    assert re.search(r"[^\\]\[", text.replace("\\[", "")) is None


def test_a_night_without_figures() -> None:
    text = markdown_night(interrupted_night())
    assert "Nothing is gated." in text and "interrupted: SIGTERM after 12 s" in text
