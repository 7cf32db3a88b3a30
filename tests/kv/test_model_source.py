"""Where a model is read from: weights beside a config, and names that are no model."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.model_source import read_model, stored_weights
from tests.kv.models import CONFIGS, GIB, run

LLAMA = str(CONFIGS / "llama-mha-32x32.json")


def safetensors(path: Path, sizes: list[int]) -> None:
    offset, header = 0, {"__metadata__": {"format": "pt"}}
    table: dict[str, object] = dict(header)
    for index, size in enumerate(sizes):
        table[f"w{index}"] = {
            "dtype": "BF16",
            "shape": [size // 2],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    raw = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(8))


def test_weights_beside_the_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(Path(LLAMA).read_text())
    assert stored_weights(tmp_path) is None
    safetensors(tmp_path / "model-1.safetensors", [1000, 24])
    safetensors(tmp_path / "model-2.safetensors", [1000])
    assert stored_weights(tmp_path) == (
        2024,
        "headers of 2 files, model-1.safetensors to model-2.safetensors",
    )
    index = {"metadata": {"total_size": 13 * GIB}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    run(str(tmp_path), "--vram", "24GiB", "--overhead", "2GiB", "--json")
    plan = json.loads(capsys.readouterr().out)
    # 24 GiB x 0.92 - 13 GiB - 2 GiB
    assert plan["pool_bytes"] == 24 * GIB * 92 // 100 - 15 * GIB
    run(str(tmp_path), "--vram", "24GiB", "--overhead", "2GiB", "--weights", "10GiB", "--json")
    assert json.loads(capsys.readouterr().out)["pool_bytes"] == plan["pool_bytes"] + 3 * GIB


def test_a_damaged_safetensors_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 8)
    with pytest.raises(UsageError, match=r"no safetensors file .*or give --weights SIZE"):
        stored_weights(tmp_path)


def header(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", header('{"w": {"data_offsets": [100000000000, 0]}}'), "no range"),
        ("model.safetensors", header('{"w": {"data_offsets": [0, NaN]}}'), "no two whole"),
        ("model.safetensors", header('{"w": {"data_offsets": [0, 1e3]}}'), "no two whole"),
        ("model.safetensors", header('{"w": {"data_offsets": [0, true]}}'), "no two whole"),
        ("model.safetensors", header('{"w": 5}'), "no two whole"),
        ("model.safetensors", header("{}"), "its header lists no tensors"),
        ("model.safetensors", header("[]"), "no JSON object"),
        ("model.safetensors", header("[" * 100_000), "no safetensors file"),
        ("model.safetensors", header(f'{{"w": {{"data_offsets": [0, {2**61}]}}}}'), "than 2^60"),
        ("model.safetensors", header(f'{{"w": {{"data_offsets": [9, {"8" * 400}]}}}}'), "2^60"),
        ("model.safetensors", b"", "no safetensors file"),
        ("model.safetensors", LFS, "a Git LFS pointer, not the file itself; run git lfs pull"),
        (INDEX, LFS, "a Git LFS pointer"),
        (INDEX, b"{", "not JSON"),
        (INDEX, b"[" * 100_000, "not JSON"),
        (INDEX, b"[]", "no index"),
        (INDEX, b'{"weight_map": {"w": "../model.safetensors"}}', "no index"),
        (INDEX, b'{"weight_map": {"w": "gone.safetensors"}}', "gone.safetensors: cannot be read"),
        (INDEX, b'{"metadata": {"total_size": true}}', "total_size is True"),
        (INDEX, b'{"metadata": {"total_size": 0}}', "total_size is 0; expected bytes"),
        (INDEX, b'{"metadata": {"total_size": NaN}}', "total_size is nan"),
        (INDEX, b'{"metadata": {"total_size": 1%s}}' % (b"0" * 400), "expected bytes, 1 to 2^60"),
    ],
)
def test_weights_that_make_no_sense_stop_only_a_plan_that_needs_them(
    name: str, content: bytes, words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(Path(LLAMA).read_text())
    (tmp_path / name).write_bytes(content)
    folder = str(tmp_path)
    with pytest.raises(UsageError) as caught:
        run(folder, "--vram", "80GiB")
    message = str(caught.value)
    assert words in message
    assert name in message or "gone.safetensors" in message
    assert message.endswith("or give --weights SIZE")
    assert "\n" not in message
    assert len(message) < len(folder) + 250
    run(folder)
    run(folder, "--vram", "80GiB", "--weights", "13GiB")
    run(folder, "--kv-memory", "8GiB")


def test_only_the_model_s_own_weight_files_count(tmp_path: Path) -> None:
    safetensors(tmp_path / "adapter_model.safetensors", [6])
    assert stored_weights(tmp_path) is None
    safetensors(tmp_path / "consolidated.safetensors", [1000])
    assert stored_weights(tmp_path) == (1000, "header of consolidated.safetensors")
    safetensors(tmp_path / "model.safetensors", [1002])
    assert stored_weights(tmp_path) == (1002, "header of model.safetensors")
    # an index without a total: the files that it lists, no others
    safetensors(tmp_path / "part.safetensors", [400])
    (tmp_path / INDEX).write_text('{"weight_map": {"a": "part.safetensors"}}')
    assert stored_weights(tmp_path) == (400, f"header of part.safetensors (listed in {INDEX})")


def test_a_folder_that_may_not_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(UsageError, match=r"secret: cannot be read \(Permission denied\)"):
        read_model("secret")


def test_a_hub_id_without_a_network_is_one_clear_line() -> None:
    # the hub is looked for only when no such file exists; offline mode answers at once
    code = (
        "from harness.errors import UsageError\n"
        "from harness.model_source import read_model\n"
        "try:\n    read_model('nobody/nothing')\n"
        "except UsageError as error:\n    print(error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.startswith("nobody/nothing: no such file")
    assert done.stdout.count("\n") == 1
