"""``--compile`` as a process: what was compiled at start serves, on the engine's thread too."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contiguous.support import byte_tokenizer, random_prompt
from tests.contiguous.test_process import process

#: prompts of these lengths, one request at a time and then all together
LENGTHS = [5, 40, 17]


@pytest.mark.slow
def test_nothing_is_compiled_while_requests_run(
    tmp_path: Path, bf16_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch logs each compilation that is made because a compiled one did not fit."""
    bf16_model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setenv("TORCH_LOGS", "recompiles")
    options = ("--compile", "--max-model-len", "256", "--kv-budget", "4MiB", "--threads", "1")
    with process("--model", str(tmp_path), "--port", "0", *options) as (running, text, client):
        # the second of two is a recompilation: any number of rows instead of one
        at_start = text.count("Recompiling")

        def ask(length: int) -> list[int]:
            body = {
                "prompt": random_prompt(length, length),
                "max_tokens": 30,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            answer = client.post("/v1/completions", json=body).json()
            ids: list[int] = answer["choices"][0]["token_ids"]
            return ids

        alone = [ask(length) for length in LENGTHS]
        with ThreadPoolExecutor(len(LENGTHS)) as pool:
            together = list(pool.map(ask, LENGTHS))
        assert [len(ids) for ids in together] == [30] * len(LENGTHS)
        assert [ids[0] for ids in together] == [ids[0] for ids in alone]
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        assert running.stderr is not None
        assert at_start <= 1
        assert "Recompiling" not in running.stderr.read()
