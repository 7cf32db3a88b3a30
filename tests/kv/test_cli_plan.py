"""The verb ``plan``: its input, its output, and what it must not load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.model_source import MAX_JSON_BYTES
from tests.kv.models import CONFIGS, TINY, config, run

ROOT = Path(__file__).parent.parent.parent
LLAMA = str(CONFIGS / "llama-mha-32x32.json")


def test_the_seed_figure(capsys: pytest.CaptureFixture[str]) -> None:
    run(LLAMA, "--context", "4096", "--batch", "1")
    out = " ".join(capsys.readouterr().out.split())
    assert "2,147,483,648 B = 2.00 GiB" in out
    # an eighth of a GiB at 256 tokens
    assert "256 128.0 MiB 128.0 MiB" in out
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
    assert "2 lengths of lengths.txt\n" in out
    assert "640 to 1,152 tokens, mean 896.0" in out
    # nothing of one request as long as the context
    assert "1 request of 4,096 tokens" not in out


def test_dynamic_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("llama-2-7b") | TINY))
    asked = [str(tmp_path), "--device", "cpu", "--kv-memory", "16MiB", "--max-model-len", "2048"]
    asked += ["--prompt-tokens", "512", "--output-tokens", "128", "--layout", "dynamic"]
    # 16,777,216 // (640 x 1,024) = 25 promises; with an eighth for the copy 22
    run(*asked)
    out = " ".join(capsys.readouterr().out.split())
    assert "safe concurrency 25 requests at once (as the contiguous server admits)" in out
    assert "safe with the copy 22 requests at once" in out
    assert "peak, with a copy 737,280 B = 720.0 KiB" in out
    run(*asked, "--json")
    plan = json.loads(capsys.readouterr().out)
    assert (plan["safe_concurrency"], plan["safe_with_copy"]) == (25, 22)
    assert (plan["reserved_bytes"], plan["peak_bytes"]) == (655_360, 737_280)


def test_a_name_cannot_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = config("llama-2-7b") | {"architectures": ["\x1b[31mRed\nModel"]}
    (tmp_path / "config.json").write_text(json.dumps(odd))
    run(str(tmp_path))
    assert "\\x1b[31mRed\\nModel (known)" in capsys.readouterr().out


def test_a_name_that_the_output_cannot_show(tmp_path: Path) -> None:
    folder = tmp_path / "模型"
    folder.mkdir()
    (folder / "config.json").write_text(Path(LLAMA).read_text())
    done = subprocess.run(
        [sys.executable, "-m", "harness", "plan", "模型"],
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout.startswith(b"\\u6a21\\u578b: LlamaForCausalLM (known)")


def test_a_narrow_terminal_gets_narrow_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((60, 24)))
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1)
    run(LLAMA, "--vram", "80GiB")
    working = capsys.readouterr().out.split("Working")[1]
    assert max(len(line) for line in working.splitlines()) <= 60


def test_models_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(CONFIGS / f"{name}.json") for name in ("llama-2-7b", "qwen2.5-7b")]
    run("--compare", *names)
    out = capsys.readouterr().out
    assert "524,288" in out
    assert "57,344" in out
    run("--compare", "--json", *names)
    assert len(json.loads(capsys.readouterr().out)["models"]) == 2


BAD = {
    "list.json": "[1]",
    "broken.json": "{",
    "other.json": '{"name": "a package"}',
    "deep.json": '{"num_attention_heads": ' + "[" * 400 + "]" * 400 + ', "hidden_size": 8, '
    '"num_hidden_layers": 1}',
    "nested.json": '{"text_config": ' * 300 + "{}" + "}" * 300,
    "unsized.json": '{"model_type": "llama", "num_hidden_layers": 1, "vocab_size": "x"}',
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
        ([LLAMA, "--lengths", "list.json"], "--vram, --kv-memory or --from-run beside it"),
        ([LLAMA, "--kv-memory", "1GiB", "--lengths", "none.txt"], "a readable file"),
        ([LLAMA, "--kv-memory", "1GiB", "--lengths", "list.json"], "line 1"),
        ([LLAMA, LLAMA], "--compare for several"),
        ([LLAMA, "--kv-memory", "0GiB"], "--kv-memory: '0GiB' is not valid; expected a size"),
        ([LLAMA, "--mamba-ssm-cache-dtype", "zzz"], "--mamba-ssm-cache-dtype: 'zzz' is not valid"),
        ([LLAMA, "--dtype", "zzz"], "--dtype: 'zzz' is not valid"),
        ([LLAMA, "--context", "0"], "--context: 0 is not valid"),
        ([LLAMA, "--vram", "0"], "--vram: '0' is not valid"),
        ([""], "MODEL is empty"),
        (["nested.json"], "nested more than 4 deep"),
        (["unsized.json", "--vram", "24GiB"], "does not give it (config: vocab_size is 'x'; exp"),
        (["large.json"], "large.json: too large for a config"),
        (["fifo"], "fifo: no regular file"),
        (["deep.json"], "num_attention_heads is "),
        (["\x1b[31m.json"], "\\x1b[31m.json: no such file"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in BAD.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "large.json").open("wb") as large:
        large.truncate(MAX_JSON_BYTES + 1)
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        run(*arguments)
    message = str(caught.value)
    assert words in message
    assert message.isprintable()
    assert len(message) < 400
    assert caught.value.exit_code == 2


def test_text_fits_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("512 128\n1024 128\n")
    run(LLAMA, "--vram", "80GiB", "--lengths", str(lengths))
    lines = capsys.readouterr().out.splitlines()
    # the model's path is one word
    assert [line for line in lines[1:] if len(line) > 80] == []
    log = next(index for index, line in enumerate(lines) if "vLLM's log would say" in line)
    assert lines[log + 1].startswith(" " * 25)


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys, harness.cli_plan as c\n"
        f"c.plan_command.main(args=[{LLAMA!r}, '--json'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
