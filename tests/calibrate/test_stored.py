"""A calibration on file, and what a run makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.run import analyse
from harness.calibrate.stored import (
    calibration_path,
    difference,
    read_calibration,
    write_calibration,
)
from harness.errors import UsageError
from harness.load import machine
from harness.records import Scalar
from harness.report.method import calibration_line
from tests.calibrate.support import IDENTITY, calibration, level
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run, replace_manifest


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    kept = calibration(level(100, 5_000.0))
    path = write_calibration(tmp_path / "home", kept)
    assert path == calibration_path(tmp_path / "home")
    assert read_calibration(tmp_path / "home") == kept
    assert list((tmp_path / "home").iterdir()) == [path]


@pytest.mark.parametrize("text", [None, b"", b"{}", b"[1]", b'{"schema_version": 1}'])
def test_none_and_damaged_ones_are_none(tmp_path: Path, text: bytes | None) -> None:
    if text is not None:
        calibration_path(tmp_path).write_bytes(text)
    assert read_calibration(tmp_path) is None
    assert machine.calibrated(tmp_path) == {}


def test_one_of_another_schema_is_none(tmp_path: Path) -> None:
    path = write_calibration(tmp_path, calibration(level(100, 5_000.0)))
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2'))
    assert read_calibration(tmp_path) is None


def test_a_home_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--home: .* cannot be written"):
        write_calibration(tmp_path / "file", calibration(level(100, 5_000.0)))


def test_what_differs_is_named() -> None:
    kept = calibration(level(100, 5_000.0))
    assert difference(kept, IDENTITY) is None
    assert difference(kept, {**IDENTITY, "cores": 4}) == "cores 2 (now 4)"
    assert difference(kept, {**IDENTITY, "gevent": "26.1"}) == "gevent None (now 26.1)"


def test_a_runs_environment_carries_the_rate_and_when(tmp_path: Path) -> None:
    assert "calibrated_at" not in machine.environment(tmp_path)
    write_calibration(tmp_path, calibration(level(100, 5_000.0), identity=machine.identity()))
    facts = machine.environment(tmp_path)
    assert facts["calibrated_tokens_per_s"] == 5_000.0
    assert facts["calibrated_at"] == "2026-01-01 00:00 UTC"
    assert "calibration_unused" not in facts


def test_one_of_another_machine_is_not_used_and_that_is_said(tmp_path: Path) -> None:
    other = {**machine.identity(), "cpu": "another"}
    write_calibration(tmp_path, calibration(level(100, 5_000.0), identity=other))
    facts = machine.environment(tmp_path)
    assert "calibrated_tokens_per_s" not in facts
    assert str(facts["calibration_unused"]).startswith("cpu another (now ")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "not calibrated on its machine; kvknee calibrate tells"),
        ({"calibrated_tokens_per_s": 48_000.0}, "within 1 ms up to 48,000 token events/s"),
        ({"calibrated_tokens_per_s": None}, "at no rate found right to 1 ms"),
        ({"calibration_unused": "cores 2 (now 4)"}, "is not used, for since then changed: cores"),
    ],
)
def test_the_method_says_what_is_known_of_the_client(facts: dict[str, Scalar], words: str) -> None:
    run = build_run((PAGED,), (4,), (20,))
    environment = {"calibrated_at": "2026-01-01 00:00 UTC", **facts} if facts else {}
    run.manifest = replace_manifest(run.manifest, environment=environment)
    summary = analyse(run.manifest, run.records, run.events, run.series)
    assert words in calibration_line(summary)
