"""Log-probabilities: those of the model's own logits, by token ids, as vLLM writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from pydantic import ValidationError

from servers.contiguous.logprobs import token_logprobs
from servers.contiguous.protocol import CompletionRequest
from servers.contiguous.sampling import Sampler, SamplingParams, choose_tokens
from tests.contiguous.serving import frames, real_service, serving
from tests.contiguous.support import CPU, random_prompt

COMPLETIONS = "/v1/completions"
PROMPT = random_prompt(40, 0)
ASKED = {
    "model": "tiny",
    "prompt": PROMPT,
    "temperature": 0,
    "ignore_eos": True,
    "max_tokens": 8,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "logprobs": 3,
}


@pytest.fixture(scope="module", params=["static", "dynamic"])
def client(request: pytest.FixtureRequest, model: Any) -> Iterator[httpx.Client]:
    service = real_service(model, cache=request.param, kv_budget_bytes=4 * 512 * 2048)
    with serving(service) as running:
        yield running


def expected(model: Any, ids: list[int]) -> torch.Tensor:
    """Log-probabilities ``[8, vocab]`` of the model by itself, over the whole sequence at once."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1)


def test_each_token_has_its_own_and_the_likeliest_beside_it(
    client: httpx.Client, model: Any
) -> None:
    choice = client.post(COMPLETIONS, json=ASKED).json()["choices"][0]
    ids, given = choice["token_ids"], choice["logprobs"]
    truth = expected(model, ids)
    assert given["tokens"] == [f"token_id:{token}" for token in ids]
    own = torch.tensor(given["token_logprobs"])
    assert torch.allclose(own, truth[range(8), ids], atol=1e-4)
    for row, top in zip(truth, given["top_logprobs"], strict=True):
        best = torch.topk(row, 3)
        # greedy: the chosen token is the likeliest, so three are three
        assert list(top) == [f"token_id:{token}" for token in best.indices.tolist()]
        assert torch.allclose(torch.tensor(list(top.values())), best.values, atol=1e-4)
    assert given["text_offset"][0] == 0
    assert given["text_offset"] == sorted(given["text_offset"])


def test_a_stream_says_the_same_token_by_token(client: httpx.Client) -> None:
    whole = client.post(COMPLETIONS, json=ASKED).json()["choices"][0]["logprobs"]
    parts = [f["choices"][0]["logprobs"] for f in frames(client, COMPLETIONS, ASKED)[:-1]]
    for name in ("tokens", "token_logprobs", "text_offset"):
        joined = [value for part in parts for value in part[name]]
        assert joined == (pytest.approx(whole[name]) if name == "token_logprobs" else whole[name])
    for part, top in zip(parts, whole["top_logprobs"], strict=True):
        assert part["top_logprobs"][0] == pytest.approx(top)


def test_neighbours_that_ask_for_none_get_none(client: httpx.Client) -> None:
    plain = {**ASKED, "logprobs": None}
    assert client.post(COMPLETIONS, json=plain).json()["choices"][0]["logprobs"] is None
    none_beside = client.post(COMPLETIONS, json={**ASKED, "logprobs": 0}).json()["choices"][0]
    # 0 asks for the tokens' own alone
    assert all(len(top) == 1 for top in none_beside["logprobs"]["top_logprobs"])


def test_they_are_those_before_temperature_and_withheld_tokens() -> None:
    params = SamplingParams(max_tokens=5, min_tokens=2, temperature=0.0, logprobs=2)
    sampler = Sampler(params, frozenset({1}), CPU)
    logits = torch.tensor([[0.0, 3.0, 2.0]])
    raw = torch.log_softmax(logits[0].clone(), dim=-1)
    # token 1 ends the text and may not come yet: 2 is chosen, 1 stays the likeliest
    assert choose_tokens(logits, [sampler], [0]) == [2]
    assert sampler.newest is not None
    assert sampler.newest.chosen == pytest.approx(float(raw[2]))
    assert [token for token, _ in sampler.newest.top] == [1, 2]


def test_no_more_are_given_than_the_vocabulary_has() -> None:
    found = token_logprobs(torch.log_softmax(torch.zeros(3), dim=-1), 0, 20)
    assert len(found.top) == 3
    # ln(1/3)
    assert found.chosen == pytest.approx(-1.0986, abs=1e-4)


@pytest.mark.parametrize("value", [-1, 21, "3", 2.5])
def test_a_number_out_of_range_is_refused(value: object) -> None:
    body = {"prompt": "a", "logprobs": value, "return_tokens_as_token_ids": True}
    with pytest.raises(ValidationError, match="logprobs"):
        CompletionRequest.model_validate(body)


def test_without_ids_the_refusal_names_the_flag() -> None:
    with pytest.raises(ValidationError, match="return_tokens_as_token_ids"):
        CompletionRequest.model_validate({"prompt": "a", "logprobs": 3})


def test_chat_has_none(client: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "logprobs": True,
        "return_tokens_as_token_ids": True,
    }
    refused = client.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logprobs"
