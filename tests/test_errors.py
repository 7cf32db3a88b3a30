"""Text of others in messages: short, on one line, and obeyed by no terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import printable, shortened, without_key


def test_names_cannot_command_a_terminal() -> None:
    assert printable("a\x1b[31m\nb\udcff") == "a\\x1b[31m\\nb\\udcff"
    # a direction mark turns the text after it around
    assert printable("\u202egnp.exe") == "\\u202egnp.exe"
    assert printable("Qwen 模型") == "Qwen 模型"


@given(st.text())
def test_whatever_the_text_it_is_printable_and_stays_so(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert (shown == text) == text.isprintable()


def test_a_long_text_keeps_its_two_ends() -> None:
    # 60 characters: 28 at each end, three dots between
    assert shortened("a" * 50 + "b" * 50) == "a" * 28 + "..." + "b" * 28
    assert shortened("a" * 60) == "a" * 60


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("sk-12345", "a *** b *** of None"),
        ("None", "a sk-12345 b sk-12345 of None"),  # fewer than 8 characters: a placeholder
        ("", "a sk-12345 b sk-12345 of None"),
        (None, "a sk-12345 b sk-12345 of None"),
    ],
)
def test_the_api_key_is_blotted_out_wherever_it_stands(key: str | None, shown: str) -> None:
    assert without_key("a sk-12345 b sk-12345 of None", key) == shown
