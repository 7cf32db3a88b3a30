"""What one call of cache_modes shows and how it ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.modes.cli import EARLIER, Table, show
from harness.modes.folder import KeptMode, keep
from tests.modes.test_compare import DYNAMIC, OFF, kept_run


def kept_by(call: str, kept: KeptMode) -> KeptMode:
    return msgspec.structs.replace(kept, call=call)


def test_every_load_failed_is_exit_code_1_and_names_the_modes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for mode in ("dynamic", "off"):
        reason = "the load ended with exit code 1, without a run"
        keep(tmp_path, KeptMode(mode=mode, reason=reason, call="now"))
    assert show(Table(tmp_path, "now", grows=False)) == 1
    assert capsys.readouterr().err.splitlines() == [
        "cache_modes: mode dynamic gave no figures: the load ended with exit code 1, without a run",
        "cache_modes: mode off gave no figures: the load ended with exit code 1, without a run",
    ]


def test_a_run_without_one_answer_gave_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = kept_by("now", kept_run(tmp_path, OFF, "off"))
    assert kept.run is not None
    (tmp_path / kept.run / "records.jsonl").write_bytes(b"")
    keep(tmp_path, kept)
    assert show(Table(tmp_path, "now", grows=False)) == 1
    assert "mode off gave no figures: no request was answered" in capsys.readouterr().err


def test_measured_modes_are_exit_code_0(tmp_path: Path) -> None:
    keep(tmp_path, kept_by("now", kept_run(tmp_path, DYNAMIC, "dynamic")))
    assert show(Table(tmp_path, "now", grows=False)) == 0


def test_a_folder_used_again_shows_this_calls_modes_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path, kept_by("before", kept_run(tmp_path, OFF, "off")))
    keep(tmp_path, kept_by("now", kept_run(tmp_path, DYNAMIC, "dynamic")))
    assert show(Table(tmp_path, "now", grows=False)) == 0
    shown = capsys.readouterr().out
    assert "dynamic" in shown
    assert "off" not in [line.split()[0] for line in shown.splitlines() if line.split()]
    assert "| off |" not in (tmp_path / "comparison.md").read_text()


def test_a_table_that_grows_marks_what_earlier_calls_measured(tmp_path: Path) -> None:
    keep(tmp_path, KeptMode(mode="sliding", reason="refused", call="before"))
    keep(tmp_path, kept_by("before", kept_run(tmp_path, OFF, "off")))
    keep(tmp_path, kept_by("now", kept_run(tmp_path, DYNAMIC, "dynamic")))
    # what an earlier call could not measure is no fault of this one
    assert show(Table(tmp_path, "now", grows=True)) == 0
    lines = (tmp_path / "comparison.md").read_text().splitlines()
    marked = [line.split("|")[1].strip() for line in lines if EARLIER in line]
    assert marked == ["sliding", "off"]
