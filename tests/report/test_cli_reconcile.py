"""``kvknee reconcile``: its table, its JSON, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import run
from tests.support.stored_runs import DYNAMIC, PAGED_STATIC, stored_run


def test_the_table_is_shown_with_its_laws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored_run(PAGED_STATIC, tmp_path)
    assert run(["reconcile", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "paged (paged): memory explained" in shown
    assert "contiguous (static): memory explained" in shown
    assert "+ rounding up to blocks" in shown
    assert "Fitted laws" in shown
    # nothing is written
    assert not (path / "report.html").exists()


def test_several_runs_are_fitted_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [stored_run(name, tmp_path) for name in (PAGED_STATIC, DYNAMIC)]
    assert run(["reconcile", *map(str, paths), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["run"] for item in found["runs"]] == [PAGED_STATIC, DYNAMIC]
    assert [len(item["cells"]) for item in found["runs"]] == [6, 3]
    fitted = {(fit["backend"], fit["mode"]) for fit in found["fits"]}
    assert fitted == {("paged", "paged"), ("contiguous", "static"), ("contiguous", "dynamic")}


def test_another_model_changes_theory_and_not_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored_run(DYNAMIC, tmp_path)
    config = json.loads((path / "configs" / "contiguous.json").read_text())
    # half the KV heads: 512 B a token, so that half of what is used stays unexplained
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 1}))
    own, other = (), ("--model-config", str(tmp_path / "config.json"))
    stages = []
    for options in (own, other):
        assert run(["reconcile", str(path), "--json", *options]) == 0
        cell = json.loads(capsys.readouterr().out)["runs"][0]["cells"][1]
        stages.append((cell["needed_bytes"], cell["stages"][0]))
    assert stages[0][0] == 2 * stages[1][0]
    assert stages[0][1]["end_bytes"] == stages[1][1]["end_bytes"]
    assert stages[1][1]["unexplained_share"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere"], "no run directory"),
        (["RUN", "--model-config", "nowhere/config.json"], "config.json"),
        (["RUN", "--kv-dtype", "int3"], "int3"),
        (["RUN", "--tp", "0"], "--tp"),
        (["RUN", "--tp", "3"], "3"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored_run(DYNAMIC, tmp_path)
    assert run(["reconcile", *(str(path) if o == "RUN" else o for o in options)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("kvknee: ")
    assert shown.err.count("\n") == 1
    assert words in shown.err


def test_a_dtype_needs_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored_run(DYNAMIC, tmp_path)
    (path / "configs" / "contiguous.json").unlink()
    assert run(["reconcile", str(path), "--kv-dtype", "fp8"]) == 2
    assert "--model-config" in capsys.readouterr().err


def test_a_run_without_requests_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored_run(DYNAMIC, tmp_path)
    (path / "records.jsonl").write_bytes(b"")
    assert run(["reconcile", str(path)]) == 0
    assert "no level was measured" in capsys.readouterr().out
