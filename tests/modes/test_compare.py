"""The table of modes: ratios to the dynamic cache, refused modes, what must not be mixed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.errors import UsageError
from harness.modes.compare import HEADS, Outcome, mode_rows, require_alike
from harness.modes.folder import KeptMode, keep, outcomes, read_kept, write_comparison
from harness.plan.fingerprint import fingerprint
from tests.support.fake_server import FakeServer, static_info
from tests.support.run_builder import build_run
from tests.support.run_files import write_run

DYNAMIC = FakeServer(static_info(mode="dynamic"), seats=8, prefill_s=0.05, tpot_s=0.01)
#: twice the time per token, and nothing else
OFF = FakeServer(static_info(mode="off"), seats=8, prefill_s=0.05, tpot_s=0.02)


def kept_run(folder: Path, server: FakeServer, mode: str, seed: int = 0) -> KeptMode:
    run = build_run([server], levels=(1,), min_requests=(20,))
    work = msgspec.structs.replace(run.manifest.workload, seed=seed)
    facts = fingerprint(work, [server.info], {"cpu": "x"}, "0.1.0")
    run.manifest = msgspec.structs.replace(run.manifest, workload=work, fingerprint=facts)
    path = write_run(run, folder / mode)
    return KeptMode(mode=mode, run=str(path.relative_to(folder)))


def test_each_mode_is_held_against_dynamic(tmp_path: Path) -> None:
    keep(tmp_path, kept_run(tmp_path, OFF, "off"))
    keep(tmp_path, KeptMode(mode="sliding", reason="refused at start: no window"))
    keep(tmp_path, kept_run(tmp_path, DYNAMIC, "dynamic"))
    found = outcomes(tmp_path)
    assert [item.mode for item in found] == ["dynamic", "sliding", "off"]
    require_alike(found)
    rows = {row[0]: row for row in mode_rows(found)}
    place = [f"{title} {unit}".strip() for title, unit in HEADS].index("TPOT p50 ms")
    # one request at a time: 10 + 0.4 ms a token, and 20 + 0.4 ms: 1.96 times
    assert rows["dynamic"][place].rstrip("*") == "10.4"
    assert rows["off"][place] == "20.4 (1.96x)"
    assert mode_rows(found, stacked=True)[-1][place] == "20.4\n1.96x"
    assert rows["sliding"][-1] == "refused at start: no window"
    assert set(rows["sliding"][1:-1]) == {"-"}
    text = write_comparison(tmp_path, found).read_text()
    assert "20.4 (1.96x)" in text
    assert "refused at start: no window" in text


def test_a_mode_measured_again_replaces_the_first(tmp_path: Path) -> None:
    keep(tmp_path, KeptMode(mode="off", reason="one"))
    keep(tmp_path, KeptMode(mode="off", reason="two"))
    assert [kept.reason for kept in read_kept(tmp_path)] == ["two"]


def test_without_dynamic_there_are_no_ratios(tmp_path: Path) -> None:
    keep(tmp_path, kept_run(tmp_path, OFF, "off"))
    (row,) = mode_rows(outcomes(tmp_path))
    assert not any("x)" in text for text in row)


def test_modes_that_were_asked_otherwise_are_not_mixed(tmp_path: Path) -> None:
    keep(tmp_path, kept_run(tmp_path, DYNAMIC, "dynamic"))
    keep(tmp_path, kept_run(tmp_path, OFF, "off", seed=1))
    with pytest.raises(UsageError, match=r"dynamic and off cannot be compared: .*workload.hash"):
        require_alike(outcomes(tmp_path))


def test_a_run_that_is_gone_is_a_row_with_its_reason(tmp_path: Path) -> None:
    keep(tmp_path, KeptMode(mode="off", run="off/nowhere"))
    (found,) = outcomes(tmp_path)
    assert isinstance(found, Outcome)
    assert found.summary is None
    assert "no run directory" in str(found.reason)
