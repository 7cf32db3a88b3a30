"""The API over real connections, with the real model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import torch
import transformers

from tests.contiguous.serving import frames, metric, real_service, serving
from tests.contiguous.support import random_prompt, reference

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = random_prompt(40, 0)
GREEDY = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", params=["static", "dynamic"])
def client(request: pytest.FixtureRequest, model: Any) -> Iterator[httpx.Client]:
    """512 tokens x 2,048 B x 4: four slots, or 2,048 promised tokens."""
    service = real_service(
        model, cache=request.param, kv_budget_bytes=4 * 512 * 2048, prefill_chunk=64
    )
    with serving(service) as running:
        yield running


def test_whole_answer(client: httpx.Client, model: Any) -> None:
    body = client.post(COMPLETIONS, json={**GREEDY, "max_tokens": 12, "return_token_ids": True})
    answer = body.json()
    assert answer["object"] == "text_completion"
    choice = answer["choices"][0]
    assert choice["token_ids"] == reference(model, PROMPT, 12).ids
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52}


def test_stream_has_one_frame_per_token(client: httpx.Client, model: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    out = frames(
        client,
        COMPLETIONS,
        {**GREEDY, "max_tokens": 12, "stream_options": options, "return_token_ids": True},
    )
    assert out.pop() == "[DONE]"
    last = out.pop()
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert [frame["usage"]["completion_tokens"] for frame in out] == list(range(1, 13))
    ids = [frame["choices"][0]["token_ids"] for frame in out]
    assert ids == [[token] for token in reference(model, PROMPT, 12).ids]
    assert [frame["choices"][0]["finish_reason"] for frame in out] == [None] * 11 + ["length"]
    assert "prompt_token_ids" in out[0]["choices"][0]
    assert "prompt_token_ids" not in out[1]["choices"][0]


def test_streamed_and_whole_text_are_the_same(client: httpx.Client) -> None:
    body = {**GREEDY, "max_tokens": 40}
    whole = client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
    parts = [frame["choices"][0]["text"] for frame in frames(client, COMPLETIONS, body)[:-1]]
    assert len(parts) == 40
    assert "".join(parts) == whole
    assert "" in parts, "bytes of unfinished characters are tokens with empty text"


def test_without_options_a_stream_has_no_usage(client: httpx.Client) -> None:
    out = frames(client, COMPLETIONS, {**GREEDY, "max_tokens": 2})
    assert out.pop() == "[DONE]"
    assert all("usage" not in frame and frame["choices"] for frame in out)


def test_chat_stream_begins_with_the_role(client: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    out = frames(client, CHAT, body)
    assert out[0]["object"] == "chat.completion.chunk"
    assert out[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert out[0]["usage"]["completion_tokens"] == 0
    tokens = out[1:-2]
    assert [frame["usage"]["completion_tokens"] for frame in tokens] == [1, 2, 3]
    assert all("content" in frame["choices"][0]["delta"] for frame in tokens)
    assert tokens[-1]["choices"][0]["finish_reason"] == "length"
    # "user: hi\nassistant:" is 9 + 10 bytes
    assert out[-2]["usage"] == {"prompt_tokens": 19, "completion_tokens": 3, "total_tokens": 22}
    assert out[-1] == "[DONE]"


def test_a_completion_that_names_no_length_has_16_tokens(client: httpx.Client) -> None:
    answer = client.post(COMPLETIONS, json=GREEDY).json()
    assert answer["usage"]["completion_tokens"] == 16


def test_a_chat_that_names_no_length_goes_to_the_end_of_the_context(client: httpx.Client) -> None:
    """A prompt of 9 + 471 + 11 bytes leaves 21 of 512."""
    body = {
        "messages": [{"role": "user", "content": "a" * 474}],
        "temperature": 0,
        "ignore_eos": True,
    }
    usage = client.post(CHAT, json=body).json()["usage"]
    assert usage == {"prompt_tokens": 491, "completion_tokens": 21, "total_tokens": 512}


@pytest.mark.parametrize(
    ("path", "body", "param", "part"),
    [
        (COMPLETIONS, {"prompt": "a" * 513}, "prompt", "context is 512 tokens"),
        (COMPLETIONS, {"prompt": "a" * 500, "max_tokens": 13}, "max_tokens", "500 of prompt + 13"),
        (COMPLETIONS, {"prompt": "a", "model": "nope"}, "model", "this server has 'tiny'"),
        (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
        (COMPLETIONS, {"prompt": [288]}, "prompt", "between 0 and 287"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt", "between 0 and 287"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "5"}, "max_tokens", "valid integer"),
        (COMPLETIONS, {"prompt": "a", "min_tokens": 17}, "min_tokens", "more than max_tokens 16"),
        (COMPLETIONS, {"prompt": "a", "n": 2}, "n", "n = 2 is not supported"),
        (COMPLETIONS, {}, "prompt", "required"),
        (CHAT, {"messages": "hi"}, "messages", "list"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 600}]}, "prompt", "context"),
        ("/tokenize", {}, None, "either prompt or messages"),
    ],
)
def test_bad_requests_are_400_in_openais_shape(
    client: httpx.Client, path: str, body: dict[str, Any], param: str | None, part: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert part in error["message"]


def test_a_body_that_is_no_json(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    response = client.post(COMPLETIONS, content=b'{"prompt": ', headers=headers)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nope", 404), ("GET", CHAT, 405)])
def test_unknown_paths_have_openais_shape(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_information(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    entry = client.get("/v1/models").json()["data"][0]
    assert (entry["id"], entry["max_model_len"]) == ("tiny", 512)
    version = client.get("/version").json()
    assert version["engine"] == "contiguous"
    assert version["kv_bytes_per_token"] == 2048
    assert version["kv_budget_bytes"] == 4 * 512 * 2048
    assert version["dtype"] == "float32"
    assert version["slots"] == (4 if version["mode"] == "static" else None)


def test_the_version_states_all_that_figures_depend_on(client: httpx.Client) -> None:
    """The harness compares these between runs, under these names."""
    version = client.get("/version").json()
    assert version["torch"] == str(torch.__version__)
    assert version["transformers"] == transformers.__version__
    assert version["threads"] == torch.get_num_threads()
    assert (version["device"], version["attn_implementation"]) == ("cpu", "sdpa")
    assert (version["prefill_chunk"], version["max_waiting"]) == (64, 256)
    assert (version["batching"], version["block_size"]) == ("continuous", None)


def test_tokenize(client: httpx.Client) -> None:
    answer = client.post("/tokenize", json={"model": "tiny", "prompt": "ab"}).json()
    assert answer["count"] == 2
    assert answer["max_model_len"] == 512
    assert len(answer["tokens"]) == 2
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/tokenize", json=chat).json()["count"] == 19


def test_metrics(client: httpx.Client) -> None:
    before = {name: metric(client, name) or 0 for name in _COUNTERS}
    frames(client, COMPLETIONS, {**GREEDY, "max_tokens": 9})
    gained = {name: (metric(client, name) or 0) - before[name] for name in _COUNTERS}
    assert gained == dict(zip(_COUNTERS, (40, 9, 1, 1, 1, 1, 8), strict=True))
    assert metric(client, "contiguous_kv_budget_bytes", model="tiny") == 4 * 512 * 2048
    assert metric(client, "contiguous_kv_used_bytes") == 0
    assert (metric(client, "contiguous_process_resident_memory_bytes") or 0) > 50e6
    assert metric(client, "contiguous_cuda_allocated_bytes") is None
    mode = client.get("/version").json()["mode"]
    slots = "4" if mode == "static" else "None"
    assert metric(client, "contiguous_cache_info", mode=mode, slots=slots, model="tiny") == 1
    assert metric(client, "contiguous_slots") == (4 if mode == "static" else None)
    length = metric(client, "contiguous_requests_total", outcome="length", model="tiny")
    assert length is not None
    assert length >= 1


_COUNTERS = (
    "contiguous_prompt_tokens_total",
    "contiguous_generation_tokens_total",
    "contiguous_queue_seconds_count",
    "contiguous_prefill_seconds_count",
    "contiguous_decode_seconds_count",
    "contiguous_time_to_first_token_seconds_count",
    "contiguous_inter_token_latency_seconds_count",
)


@pytest.fixture
def stock(client: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_openai_client_completions(stock: openai.OpenAI) -> None:
    extra = {"ignore_eos": True}
    whole = stock.completions.create(
        model="tiny", prompt="hello", max_tokens=8, temperature=0, extra_body=extra
    )
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8
    stream = stock.completions.create(
        model="tiny",
        prompt="hello",
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=extra,
    )
    chunks = list(stream)
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert len(texts) == 8
    assert "".join(texts) == whole.choices[0].text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 13


def test_openai_client_chat(stock: openai.OpenAI) -> None:
    whole = stock.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=8,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert whole.choices[0].message.role == "assistant"
    stream = stock.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=8,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content


def test_openai_client_errors(stock: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        stock.completions.create(model="tiny", prompt="a", max_tokens=1000)
    assert caught.value.code == "context_length_exceeded"


def test_dynamic_refuses_what_can_never_fit(model: Any) -> None:
    """A budget of 100 tokens: 60 + 41 is one too many."""
    with serving(real_service(model, cache="dynamic", kv_budget_bytes=100 * 2048)) as client:
        body = {**GREEDY, "prompt": random_prompt(60, 1)}
        refused = client.post(COMPLETIONS, json={**body, "max_tokens": 41})
        assert refused.status_code == 400
        assert "101 tokens x 2048 B of KV = 206848 B" in refused.json()["error"]["message"]
        assert client.post(COMPLETIONS, json={**body, "max_tokens": 40}).status_code == 200
        assert metric(client, "contiguous_requests_total", outcome="invalid") == 1
