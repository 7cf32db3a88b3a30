from __future__ import annotations

import pytest

from harness.errors import OptionError
from servers.contiguous.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16MiB", 16 * 1024 * 1024),
        ("16MB", 16_000_000),
        ("16mib", 16_777_216),
        ("1.5GiB", 3 * 2**29),
        ("2 GB", 2 * 10**9),
        ("16777216", 16_777_216),
        ("4096B", 4096),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text, "--kv-budget") == expected


@pytest.mark.parametrize("text", ["", "MiB", "16MIBS", "-1", "0", "16 M", "1e9", "0.5B", "16,5MB"])
def test_typos_name_the_option_and_what_is_right(text: str) -> None:
    with pytest.raises(OptionError, match=r"--kv-budget: .* expected a size such as 256MiB"):
        parse_size(text, "--kv-budget")


def test_format() -> None:
    assert format_size(16_777_216) == "16 MiB"
    assert format_size(512) == "512 B"
    assert format_size(3 * 2**29) == "1.5 GiB"
