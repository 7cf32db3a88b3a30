"""The models that are made here."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import ModelConfigError, StackError
from harness.stack.models import (
    choose_model,
    config_path,
    make_if_missing,
    model_facts,
    read_config,
)
from servers.models import __main__ as maker
from servers.models.smollm2 import MissingWeights, gguf_file
from servers.models.tiny import VOCABULARY, bfloat16_bytes, byte_characters

#: of the weights' file: a change here is another model, and no run compares with older ones
WEIGHTS_SHA256 = "e01529d650eccdeeeb6b692d927650e66e3ba37c9b3959167934f4c8b8429e33"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    choice = choose_model("tiny", home)
    assert make_if_missing(choice)
    assert not make_if_missing(choice)
    return Path(choice.path)


def test_tiny_is_the_same_on_every_machine(tiny: Path) -> None:
    data = (tiny / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == WEIGHTS_SHA256


def test_tiny_is_readable_by_a_server_of_another_user(tiny: Path) -> None:
    assert stat.S_IMODE(tiny.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in tiny.iterdir()} == {0o644}
    assert [path.name for path in tiny.parent.iterdir()] == ["tiny"]


def test_tiny_costs_1024_bytes_of_kv_per_token(tiny: Path) -> None:
    facts = model_facts(json.loads((tiny / "config.json").read_text()), "bfloat16")
    # 2 (K and V) x 4 layers x 2 KV heads x 32 x 2 B
    assert facts.kv_bytes_per_token == 2 * 4 * 2 * 32 * 2 == 1024
    assert facts.max_positions == 16_384
    in_float32 = model_facts(json.loads((tiny / "config.json").read_text()), "float32")
    assert in_float32.kv_bytes_per_token == 2048


def test_tiny_has_the_stated_number_of_parameters(tiny: Path) -> None:
    raw = (tiny / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    parameters = sum(int(np.prod(tensor["shape"])) for tensor in header.values())
    attention = 2 * 256 * 256 + 2 * 256 * 64
    layer = attention + 3 * 256 * 512 + 2 * 256
    assert parameters == 4 * layer + 256 + 2 * VOCABULARY * 256 == 2_364_672
    assert len(raw) == 8 + length + 2 * parameters


def test_bfloat16_rounds_half_to_even() -> None:
    # bf16 keeps 8 bits of mantissa: between 1 and 2 its steps are 2^-7
    step = 2.0**-7
    values = np.array([1.0, 1 + step / 2, 1 + 1.5 * step, -2.0, 1 + 0.51 * step], np.float32)
    bits = np.frombuffer(bfloat16_bytes(values), "<u2").astype("<u4") << 16
    assert bits.view("<f4").tolist() == [1.0, 1.0, 1 + 2 * step, -2.0, 1 + step]


def test_byte_characters_are_256_different_ones_and_ascii_prints_as_itself() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert characters[ord("A")] == "A"
    # the space is the 33rd of those that do not print (0 to 32): 256 + 32
    assert characters[ord(" ")] == chr(288)


def test_a_second_maker_that_was_faster_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tiny"

    def overtaken(draft: Path) -> None:
        (draft / "config.json").write_text("mine")
        folder.mkdir()
        (folder / "config.json").write_text("theirs")

    monkeypatch.setattr(maker, "MAKERS", {"tiny": overtaken})
    maker.make_model("tiny", folder)
    assert (folder / "config.json").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_maker_that_fails_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(draft: Path) -> None:
        (draft / "model.safetensors").write_text("half")
        raise MissingWeights("the package is not installed")

    monkeypatch.setattr(maker, "MAKERS", {"smollm2": failing})
    assert maker.main(["smollm2", str(tmp_path / "smollm2")]) == 1
    assert capsys.readouterr().err == "smollm2: the package is not installed\n"
    assert list(tmp_path.iterdir()) == []
    assert maker.main(["huge", str(tmp_path)]) == 2


def test_a_home_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(
        StackError, match=r"the model tiny could not be made: tiny: .*Not a directory"
    ):
        make_if_missing(choose_model("tiny", file))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_config_that_is_no_object_names_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        read_config(config_path(choose_model(str(tmp_path), tmp_path), {}))


def test_facts_of_what_is_not_known_are_none() -> None:
    assert model_facts({"model_type": "llama"}, "auto").kv_bytes_per_token is None


@pytest.mark.engines
def test_tiny_answers_vary_and_depend_on_the_prompt(tiny: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny)
    answers = []
    for prompt in ("To be, or not to be", "Once upon a time"):
        ids = tokenizer(prompt, return_tensors="pt")
        # token id = byte value
        assert ids["input_ids"][0].tolist() == list(prompt.encode())
        out = model.generate(**ids, max_new_tokens=64, do_sample=False)[0, len(prompt) :].tolist()
        assert len(out) == 64
        assert all(token == 10 or 32 <= token < 127 for token in out)
        assert len(set(out)) >= 16
        answers.append(out)
    assert answers[0] != answers[1]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi 中"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|user|>hi 中<|eos|><|assistant|>"
    assert tokenizer.decode(tokenizer("hi 中")["input_ids"]) == "hi 中"


def test_smollm2_weights_are_found_without_importing_their_package() -> None:
    path = gguf_file()
    assert path.stat().st_size == 98_362_432


@pytest.mark.slow
@pytest.mark.engines
def test_smollm2_is_a_bf16_llama_of_23040_bytes_per_token(tmp_path: Path) -> None:
    folder = tmp_path / "smollm2"
    command = [sys.executable, "-m", "servers.models", "smollm2", str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    config = json.loads((folder / "config.json").read_text())
    # 2 x 30 layers x 3 KV heads x 64 x 2 B
    assert model_facts(config, "auto").kv_bytes_per_token == 2 * 30 * 3 * 64 * 2 == 23_040
    assert (folder / "model.safetensors").stat().st_size > 260_000_000
    assert "tokenizer.json" in {path.name for path in folder.iterdir()}
