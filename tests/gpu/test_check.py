"""The GPU check itself, with its small model on whatever device is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import check, predict
from tests.gpu.cells import Cell, Row, Sweep, cells_of, run_cell
from tests.gpu.models import MODELS, TINY, make_model, parameter_bytes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def report(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "gpu_check.json").read_text())
    return loaded


@pytest.mark.slow
def test_every_cell_is_as_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--tiny", "--out", str(tmp_path)]) == 0
    rows = report(tmp_path)["rows"]
    assert len(rows) == 6 * 2 * 2
    for row in rows:
        assert row["skipped"] is None
        assert row["problems"] == []
        assert row["used_bytes"] == row["predicted_used_bytes"]
        assert row["ttft_s"] > 0
        assert row["tpot_s"] > 0
        assert row["max_allocated_bytes"] is None, "torch counts nothing on a CPU"
    out = capsys.readouterr().out
    assert "quantized-4" in out
    assert "24 of 24 cells measured, 0 not as predicted" in out


def test_a_wrong_figure_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Sweep(("static",), (16,), (1,), 6, 64, predict.TINY_WINDOW)
    monkeypatch.setattr(Sweep, "tiny", classmethod(lambda cls: few))
    monkeypatch.setattr(predict, "used_bytes", lambda *args: 12345)
    assert check.main(["--tiny", "--out", str(tmp_path)]) == 1
    assert "NOT AS PREDICTED: tiny static 16 tokens x 1: used" in capsys.readouterr().out


@pytest.mark.slow
def test_without_time_the_rows_say_so(tmp_path: Path) -> None:
    """And a run that measured nothing is no success."""
    assert check.main(["--tiny", "--seconds", "0", "--out", str(tmp_path)]) == 1
    assert {row["skipped"] for row in report(tmp_path)["rows"]} == {"no time left"}


def test_the_large_models_need_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        check.main(["--out", str(tmp_path)])
    assert left.value.code == 2
    assert "--tiny" in capsys.readouterr().err


def one(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Row:
    """A cell whose engine fails; the one token that measures the layout still passes."""
    model = make_model(TINY, CPU)
    plain = model.model.layers[1].mlp.forward

    def fail(states: torch.Tensor) -> Any:
        if states.shape[1] > 1:
            raise error
        return plain(states)

    monkeypatch.setattr(model.model.layers[1].mlp, "forward", fail)
    return run_cell(TINY, model, CPU, Sweep.tiny(), Cell("dynamic", 16, 6, 1))


def test_too_little_memory_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    row = one(monkeypatch, torch.OutOfMemoryError("Tried to allocate 2.00 GiB."))
    assert row.skipped == "prefilling failed: OutOfMemoryError: Tried to allocate 2.00 GiB."
    assert row.problems == []


def test_another_error_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    row = one(monkeypatch, ValueError("boom"))
    assert row.problems == ["prefilling failed: ValueError: boom"]


def test_shapes_have_the_published_parameters() -> None:
    """Llama 3.2 1B: 1,235,814,400 parameters; Llama 3.1 8B: 8,030,261,248; 2 B each."""
    assert [parameter_bytes(shape) for shape in MODELS] == [2 * 1_235_814_400, 2 * 8_030_261_248]
    model = make_model(TINY, CPU)
    assert sum(parameter.nbytes for parameter in model.parameters()) == parameter_bytes(TINY)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_cells_go_from_few_tokens_to_many() -> None:
    loads = [cell.prompt_tokens * cell.batch for cell in cells_of(Sweep.full())]
    assert loads == sorted(loads)
    assert (len(loads), loads[-1]) == (6 * 4 * 3, 16 * 8192)


@pytest.mark.slow
def test_it_needs_few_packages(tmp_path: Path) -> None:
    """As on a machine where kvknee is not installed: no client of Prometheus, no click."""
    banned = ("prometheus_client", "psutil", "click", "gevent", "locust", "msgspec", "uvloop")
    script = (
        "import runpy, sys\n"
        f"for name in {banned!r}: sys.modules[name] = None\n"
        f"sys.argv = ['check.py', '--tiny', '--seconds', '0', '--out', {str(tmp_path)!r}]\n"
        f"runpy.run_path({str(Path(check.__file__))!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "0 of 24 cells measured" in done.stdout
