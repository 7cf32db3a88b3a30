"""Real servers compared through the command, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch

from harness.cli import run
from tests.contiguous.serving import real_service, serving
from tests.contiguous.support import tiny_model

BUDGET = 4 * 512 * 2048
SHORT = ("--prompt-tokens", "8,40", "--prompts", "2", "--output-tokens", "12")


def url(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")


@pytest.fixture(scope="module")
def static(model: Any) -> Iterator[str]:
    with serving(real_service(model, cache="static", kv_budget_bytes=BUDGET)) as client:
        yield url(client)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


def test_two_caches_of_one_model_agree(
    static: str, model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(real_service(model, cache="dynamic", kv_budget_bytes=BUDGET)) as client:
        backends = f"static={static},dynamic={url(client)}"
        assert run(["equivalence", "--backends", backends, *SHORT, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(["equivalence", "--backends", backends, *SHORT]) == 0
    assert found["agrees"] is True
    (one,) = found["comparisons"]
    # float32 on both sides: identical, with log-probabilities equal to float32's last digits
    assert (one["same"], one["tie"], one["different"], one["tie_gap"]) == (4, 0, 0, 0.001)
    assert one["agreed_share"] == 1.0
    assert max(item["max_logprob_error"] for item in one["prompts"]) < 1e-4
    shown = capsys.readouterr().out
    assert "static (static, float32) and dynamic (dynamic, float32)" in shown
    assert "agree: of 4 prompts 4 token by token" in shown


def test_another_model_disagrees_and_the_exit_code_says_so(
    static: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tiny_model()
    with torch.no_grad():
        other.lm_head.weight.copy_(other.lm_head.weight.roll(1, dims=0))
    with serving(real_service(other, cache="dynamic", kv_budget_bytes=BUDGET)) as client:
        backends = f"one={static},two={url(client)}"
        assert run(["equivalence", "--backends", backends, *SHORT]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "one and two disagree" in shown
    # every token is called one higher: the first one differs already
    assert "token 1: different" in shown


def test_bad_input_is_one_line_and_exit_code_2(
    static: str, capsys: pytest.CaptureFixture[str]
) -> None:
    long = ("--prompt-tokens", "600")
    cases: list[tuple[list[str], str]] = [
        (["--backends", f"a={static}"], "two servers"),
        (["--backends", f"a={static},b=http://127.0.0.1:1", *SHORT], "cannot be reached"),
        (["--backends", f"a={static},b={static}", *long], "fewer than 632"),
        (["--backends", f"a={static},b={static}", "--model", "mine"], "mine"),
        (["--prompts", "0"], "prompts"),
    ]
    for options, words in cases:
        assert run(["equivalence", *options]) == 2, options
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.splitlines()[-1].startswith("kvknee: ")
        assert words in shown.err
        assert "Traceback" not in shown.err
