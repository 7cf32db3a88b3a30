"""Sizes as people write them, read and written."""

from __future__ import annotations

import pytest

from harness.errors import OptionError
from harness.sizes import exact_size, parse_size, readable_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16MiB", 16 * 1024 * 1024),
        ("16MB", 16_000_000),
        ("16 mib", 16_777_216),
        ("1.5GiB", 3 * 2**29),
        ("2 GB", 2 * 10**9),
        ("16777216", 16_777_216),
        ("4096B", 4096),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text, "--kv-budget") == expected


@pytest.mark.parametrize(
    "text", ["", "MiB", "16MIBS", "-1", "0", "1e9", "0.5B", "16,5MB", "nan", "٢٤GiB"]
)
def test_typos_name_the_option_and_what_is_right(text: str) -> None:
    with pytest.raises(OptionError, match=r"--kv-budget: .* expected a size such as 16MiB"):
        parse_size(text, "--kv-budget")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("24G", r"24GB \(10\^9 bytes each\) or 24GiB \(2\^30 bytes each\): G could be either"),
        ("16 M", r"16MB \(10\^6 bytes each\) or 16MiB \(2\^20 bytes each\): M could be either"),
        ("9" * 4000, r"'9+\.\.\.9+' is not valid; expected at most 2\^60 bytes"),
        ("2097152TiB", r"at most 2\^60 bytes"),
        ("9" * 4000 + "G", r"could be either"),
    ],
)
def test_two_readings_and_absurd_sizes_are_named_in_a_short_line(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        parse_size(text, "--vram")
    assert len(str(caught.value)) < 220
    assert parse_size("1048576TiB", "--vram") == 2**60


def test_nothing_is_a_size_only_where_it_may_be() -> None:
    assert parse_size("0", "--overhead", least=0) == 0
    with pytest.raises(OptionError, match="--overhead"):
        parse_size("-1", "--overhead", least=0)


@pytest.mark.parametrize("size", [1, 1_000, 2_048, 16 * 2**20, 3 * 2**30])
def test_an_exact_size_reads_back_as_the_same_bytes(size: int) -> None:
    assert parse_size(exact_size(size), "--kv-budget") == size


def test_a_readable_size_has_four_digits() -> None:
    assert readable_size(16_777_216) == "16 MiB"
    assert readable_size(512) == "512 B"
    assert readable_size(3 * 2**29) == "1.5 GiB"
