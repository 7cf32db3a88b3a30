"""Names of modes: what differs from the default is appended, and read back."""

from __future__ import annotations

import pytest

from harness.kv.modes import CacheMode, mode_name, read_mode


@pytest.mark.parametrize(
    ("stated", "name", "mode"),
    [
        (("static", "max", "continuous"), "static", CacheMode("static")),
        (("static", None, None), "static", CacheMode("static")),
        (("dynamic", None, "continuous"), "dynamic", CacheMode("dynamic")),
        (("static", "exact", "continuous"), "static/exact", CacheMode("static", "exact")),
        (("static", "pow2", "static"), "static/pow2/batch", CacheMode("static", "pow2", "static")),
        (("dynamic", None, "static"), "dynamic/batch", CacheMode("dynamic", "max", "static")),
        (("static", "max", "none"), "static/none", CacheMode("static", "max", "none")),
        (("quantized", None, "continuous"), "quantized", CacheMode("quantized")),
    ],
)
def test_names(stated: tuple[str, str | None, str | None], name: str, mode: CacheMode) -> None:
    assert mode_name(*stated) == name
    assert read_mode(name) == mode


def test_a_name_of_an_earlier_version() -> None:
    assert read_mode("dynamic-batching-none") == CacheMode("dynamic", "max", "none")


@pytest.mark.parametrize("name", ["static/half", "static/exact/pow2", "static/none/batch"])
def test_a_name_that_is_none(name: str) -> None:
    assert read_mode(name) is None
