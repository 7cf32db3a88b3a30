from __future__ import annotations

import pytest

from harness.report.units import (
    byte_scale,
    bytes_text,
    duration_text,
    milliseconds,
    ms_text,
    number,
    percent_text,
    without_folder,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123, "0.012"),
        (0.5, "0.50"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (28.64, "28.6"),
        (99.96, "100"),
        (1665.4, "1,665"),
        (None, "-"),
    ],
)
def test_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_milliseconds_mark_thin_samples_and_infinite_values() -> None:
    assert ms_text(0.0286) == "28.6"
    assert ms_text(0.0286, thin=True) == "28.6*"
    assert ms_text(float("inf")) == "∞"
    assert ms_text(None) == "-"
    assert milliseconds(0.5) == 500.0
    assert milliseconds(float("inf")) is None


def test_bytes_are_binary() -> None:
    # 16 MiB = 16 x 1,048,576 B
    assert bytes_text(16_777_216) == "16.0 MiB"
    assert bytes_text(1023) == "1,023 B"
    assert bytes_text(10 * 1024**3) == "10.0 GiB"
    assert byte_scale(16_777_216) == (1_048_576.0, "MiB")


def test_durations_and_shares() -> None:
    assert duration_text(0.0286) == "28.6 ms"
    assert duration_text(1.67) == "1.67 s"
    assert duration_text(125) == "2 min 5 s"
    # 100 % is only said of a whole
    assert percent_text(0.9996) == "99.9 %"
    assert percent_text(1.0) == "100 %"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/models/llama", "llama"),
        ("~/models/llama/", "llama"),
        ("C:\\models\\llama", "llama"),
        ("org/llama", "org/llama"),
        ("tiny", "tiny"),
    ],
)
def test_folders_of_this_machine_are_not_shown(text: str, shown: str) -> None:
    assert without_folder(text) == shown
