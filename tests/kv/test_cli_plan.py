"""The verb ``plan``: its input, its output, and what it must not load."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli_plan import plan_command
from harness.errors import UsageError
from harness.model_source import read_model, stored_weights
from tests.kv.models import CONFIGS, GIB

LLAMA = str(CONFIGS / "llama-mha-32x32.json")


def run(*arguments: str) -> None:
    plan_command.main(args=list(arguments), standalone_mode=False)


def test_the_seed_figure(capsys: pytest.CaptureFixture[str]) -> None:
    run(LLAMA, "--context", "4096", "--batch", "1")
    out = " ".join(capsys.readouterr().out.split())
    assert "2,147,483,648 B = 2.00 GiB" in out
    assert "2.00 times the cache, 4.00 times the attention" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    run(LLAMA, "--json", "--kv-memory", "8GiB", "--max-model-len", "2048", "--tp", "2")
    plan = json.loads(capsys.readouterr().out)
    # 2 ranks: 262,144 B per token, 4 MiB per block: 2,048 blocks, 2,047 // 128 = 15
    assert plan["kv_bytes_per_token"] == 262_144
    assert plan["safe_concurrency"] == 15
    assert plan["max_concurrency"] == 16.0
    assert plan["pool_tokens"] == 32_768


def test_all_layouts_and_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("512 128\n1024 128\n")
    run(LLAMA, "--layout", "all", "--kv-memory", "8GiB", "--lengths", str(lengths), "--seed", "3")
    out = capsys.readouterr().out
    assert "contiguous-max" in out
    assert "2 lengths" in out


def test_models_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(CONFIGS / f"{name}.json") for name in ("llama-2-7b", "qwen2.5-7b")]
    run("--compare", *names)
    out = capsys.readouterr().out
    assert "524,288" in out
    assert "57,344" in out
    run("--compare", "--json", *names)
    assert len(json.loads(capsys.readouterr().out)["models"]) == 2


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


BAD = {
    "list.json": "[1]",
    "broken.json": "{",
    "other.json": '{"name": "a package"}',
    "heads.json": '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 0,'
    ' "hidden_size": 8}',
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.json"], "missing.json: no such file"),
        (["list.json"], "no model config"),
        (["broken.json"], "not JSON"),
        (["other.json"], "no model config"),
        (["heads.json"], "num_attention_heads is 0"),
        (["."], "the folder has no config.json"),
        ([LLAMA, "--kv-dtype", "fp17"], "--kv-dtype: 'fp17' is not valid"),
        ([LLAMA, "--vram", "24G"], "--vram: '24G' is not valid; expected 24GB (10^9"),
        ([LLAMA, "--vram", "8GiB"], "does not fit: needs"),
        ([LLAMA, "--vram", "24GiB", "--utilization", "1.5"], "--utilization"),
        ([LLAMA, "--tp", "3"], "--tp: 3 is not valid"),
        ([LLAMA, "--tp", "0"], "--tp: 0 is not valid"),
        ([LLAMA, "--batch", "-1"], "--batch: -1 is not valid"),
        ([LLAMA, "--layout", "pages"], "--layout: 'pages' is not valid"),
        ([LLAMA, "--vram", "24GiB", "--kv-memory", "1GiB"], "either --kv-memory or --vram"),
        ([LLAMA, "--prompt-tokens", "5"], "--output-tokens beside it"),
        ([LLAMA, "--output-tokens", "5"], "--output-tokens: 5 is not valid; expected --prompt-tok"),
        ([LLAMA, "--utilization", "nan"], "--utilization: nan is not valid"),
        ([LLAMA, "--batch", "9" * 400], "a whole number, 1 to 2^31"),
        ([LLAMA, "--block-size", "9" * 400], "a whole number, 1 to 2^31"),
        ([LLAMA, "--max-num-batched-tokens", "9" * 400], "a whole number, 1 to 2^31"),
        ([LLAMA, "--max-num-seqs", "9" * 400], "a whole number, 1 to 2^31"),
        ([LLAMA, "--seed", "9" * 400], "-2^63 to 2^63"),
        ([LLAMA, "--vram", "9" * 4000], "at most 2^60 bytes"),
        ([LLAMA, "--kv-memory", "9" * 4000], "at most 2^60 bytes"),
        ([LLAMA, "--vram", "24GiB", "--weights", "9" * 4000], "at most 2^60 bytes"),
        ([LLAMA, "--vram", "24GiB", "--overhead", "9" * 4000], "at most 2^60 bytes"),
        (["x" * 5000], "cannot be read (File name too long)"),
        (["/" + "x" * 300 + "/config.json"], "File name too long"),
        (["x/" * 3000], "File name too long"),
        ([LLAMA, "--context", "5", "--prompt-tokens", "5", "--output-tokens", "5"], "not both"),
        ([LLAMA, "--lengths", "list.json"], "--vram or --kv-memory beside it"),
        ([LLAMA, "--kv-memory", "1GiB", "--lengths", "none.txt"], "a readable file"),
        ([LLAMA, "--kv-memory", "1GiB", "--lengths", "list.json"], "line 1"),
        ([LLAMA, LLAMA], "--compare for several"),
        ([LLAMA, "--kv-memory", "0GiB"], "--kv-memory: '0GiB' is not valid; expected a size"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in BAD.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        run(*arguments)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 400
    assert caught.value.exit_code == 2


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


def test_text_fits_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("512 128\n1024 128\n")
    run(LLAMA, "--vram", "80GiB", "--lengths", str(lengths))
    lines = capsys.readouterr().out.splitlines()
    # the model's path is one word
    assert [line for line in lines[1:] if len(line) > 80] == []
    log = next(index for index, line in enumerate(lines) if "vLLM's log would say" in line)
    assert lines[log + 1].startswith(" " * 25)


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


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys, harness.cli_plan as c\n"
        f"c.plan_command.main(args=[{LLAMA!r}, '--json'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
