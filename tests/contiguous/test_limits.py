"""What is too large, no Unicode or out of range is refused in OpenAI's shape, and quickly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from servers.contiguous.errors import RequestError
from servers.contiguous.limits import MAX_BODY_BYTES, check_unicode, longest_token
from tests.contiguous.serving import frames, metric, real_service, serving
from tests.contiguous.support import byte_tokenizer

COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client(model: Any) -> Iterator[httpx.Client]:
    """512 tokens of context; the longest entry of the vocabulary, <|bos|>, has 7 characters."""
    with serving(real_service(model, kv_budget_bytes=4 * 512 * 2048)) as running:
        yield running


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert found["type"] == "invalid_request_error"
    return found


def chat(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


# ---- texts


def test_longest_token() -> None:
    assert longest_token(byte_tokenizer()) == len("<|bos|>")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a" * 3585}),
        (CHAT, chat("a" * 3585)),
        (TOKENIZE, {"prompt": "a" * 3585}),
        (TOKENIZE, chat("a" * 3585)),
    ],
)
def test_a_text_that_cannot_fit_is_not_tokenized(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """512 tokens of at most 7 characters hold 3,584 characters."""
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.encode", lambda *_, **__: 1 / 0)
    found = error(client.post(path, json=body))
    assert "this model's context is 512 tokens, and the request asks for" in found["message"]
    assert "of which a token holds 7 at most; shorten it" in found["message"]
    assert (found["param"], found["code"]) == ("prompt", "context_length_exceeded")


def test_a_text_that_might_fit_is_tokenized(client: httpx.Client) -> None:
    """3,584 = 512 x 7 characters: as many tokens here, which is said exactly."""
    found = error(client.post(COMPLETIONS, json={"prompt": "a" * 3584}))
    assert "3600: 3584 of prompt + 16 of max_tokens" in found["message"]


def test_twenty_megabytes_are_refused_at_once(client: httpx.Client) -> None:
    found = error(client.post(COMPLETIONS, json={"prompt": "a" * 20_000_000}))
    assert found["code"] == "context_length_exceeded"


# ---- Unicode


@pytest.mark.parametrize("text", ["\ud800", "ab\udfff", "\udc00\ud800"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, TOKENIZE])
def test_half_a_surrogate_pair_is_no_text(client: httpx.Client, path: str, text: str) -> None:
    body = chat(text) if path == CHAT else {"prompt": text}
    found = error(_post(client, path, body))
    assert "half a surrogate pair" in found["message"]
    assert found["param"] == ("messages" if path == CHAT else "prompt")


@pytest.mark.parametrize("stop", ["\ud800", ["a", "b\udfff"]])
def test_half_a_surrogate_pair_is_no_stop_string(client: httpx.Client, stop: Any) -> None:
    found = error(_post(client, COMPLETIONS, {"prompt": "a", "stop": stop}))
    assert "half a surrogate pair" in found["message"]
    assert found["param"] == "stop"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, TOKENIZE])
def test_half_a_surrogate_pair_is_no_model(client: httpx.Client, path: str) -> None:
    body = chat("a") if path == CHAT else {"prompt": "a"}
    found = error(_post(client, path, {**body, "model": "\ud800"}))
    assert r"'\ud800' is not served here" in found["message"]
    assert found["code"] == "model_not_found"


def test_a_template_that_quotes_half_a_pair_is_answered(model: Any) -> None:
    with with_template(model, "{{ messages[0]['content'].encode('utf-8') }}") as client:
        found = error(_post(client, CHAT, chat("\ud800")))
    assert "the chat template refused the messages" in found["message"]


def test_a_template_that_fails_is_the_requests_fault(model: Any) -> None:
    with with_template(model, "{{ 1 / 0 }}") as client:
        found = error(client.post(CHAT, json=chat("a")))
    assert "division by zero" in found["message"]


def test_a_template_of_the_client_is_refused(client: httpx.Client) -> None:
    """A template is a program: it would run where all streams wait for it."""
    extra = {"chat_template": "{% for i in range(10 ** 9) %}{% endfor %}"}
    found = error(client.post(CHAT, json={**chat("a"), "chat_template_kwargs": extra}))
    assert found["message"] == "chat_template_kwargs: chat_template may not be set here"
    assert found["param"] == "chat_template_kwargs"


@contextmanager
def with_template(model: Any, template: str) -> Iterator[httpx.Client]:
    """A server whose model has that chat template."""
    service = real_service(model, kv_budget_bytes=4 * 512 * 2048)
    service.frontend.loaded.tokenizer.chat_template = template
    with serving(service) as running:
        yield running


def test_a_whole_pair_is_a_character(client: httpx.Client) -> None:
    """JSON may write U+1F511 as two escapes: 4 bytes, 4 tokens here."""
    answer = _post(client, TOKENIZE, {"prompt": "\U0001f511"})
    assert answer.json()["count"] == 4


def test_the_place_of_the_half_pair_is_said() -> None:
    with pytest.raises(RequestError, match=r"character 2 of the text is U\+DFFF"):
        check_unicode("ab\udfff", "prompt")


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    """httpx's own JSON is UTF-8, which cannot say half a pair: this one escapes."""
    return client.post(path, content=json.dumps(body).encode(), headers=JSON)


# ---- bodies


def _blanks(count: int) -> Iterator[bytes]:
    """In chunks, so without a Content-Length."""
    for _ in range(count // 2**20):
        yield b" " * 2**20


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, TOKENIZE])
def test_a_body_over_the_limit_is_413(client: httpx.Client, path: str) -> None:
    content = b" " * (MAX_BODY_BYTES + 1)
    found = error(client.post(path, content=content, headers=JSON), 413)
    assert found["message"] == "the body is larger than 33554432 bytes"
    assert (found["param"], found["code"]) == (None, "body_too_large")


def test_a_body_that_hides_its_length_is_cut_off(client: httpx.Client) -> None:
    content = _blanks(MAX_BODY_BYTES + 2**20)
    found = error(client.post(COMPLETIONS, content=content, headers=JSON), 413)
    assert found["code"] == "body_too_large"
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b" " * 1000, "the body is no valid JSON: Expecting value at character 1000"),
        (b'{"prompt": ', "the body is no valid JSON: Expecting value at character 11"),
        (b'{"prompt": "\xff"}', "error parsing the body"),
        (b"[" * 100_000, "error parsing the body"),
    ],
)
def test_what_is_no_json_names_no_parameter(
    client: httpx.Client, content: bytes, part: str
) -> None:
    before = metric(client, "contiguous_requests_total", outcome="invalid") or 0
    found = error(client.post(COMPLETIONS, content=content, headers=JSON))
    assert part in found["message"]
    assert found["param"] is None
    assert metric(client, "contiguous_requests_total", outcome="invalid") == before + 1


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, TOKENIZE])
def test_a_body_that_is_not_called_json_is_told_so(client: httpx.Client, path: str) -> None:
    headers = {"content-type": "text/plain"}
    found = error(client.post(path, content=b'{"prompt": "a"}', headers=headers))
    assert found["message"] == "Content-Type is text/plain; expected application/json"
    assert (found["param"], found["code"]) == (None, "content_type")


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": 5}, "logprobs"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_what_is_refused_names_its_parameter(
    client: httpx.Client, field: dict[str, Any], param: str
) -> None:
    found = error(client.post(COMPLETIONS, json={"prompt": "a", **field}))
    assert (found["param"], found["code"]) == (param, "value_error")
    assert found["message"].startswith(param)


def test_an_error_does_not_repeat_megabytes(client: httpx.Client) -> None:
    long = "x" * 1_000_000
    for field in ({"model": long}, {"suffix": long}):
        found = error(client.post(COMPLETIONS, json={"prompt": "a", **field}))
        assert len(found["message"]) < 400


# ---- sampling


@pytest.mark.parametrize(
    "extreme",
    [
        {"top_p": 1e-300, "temperature": 1},
        {"top_p": 5e-324, "temperature": 1e300},
        {"temperature": 1e-300},
        {"temperature": 1e300},
        {"temperature": 1e308, "min_tokens": 3},
        {"temperature": 1, "top_k": 2**70},
    ],
)
def test_extremes_of_sampling_have_an_answer(client: httpx.Client, extreme: dict[str, Any]) -> None:
    body = {"prompt": "hello", "max_tokens": 3, "ignore_eos": True, **extreme}
    assert len(frames(client, COMPLETIONS, body)) == 3 + 1


@pytest.mark.parametrize("ids", [[288], [-1], [2**70]])
def test_stop_ids_outside_the_vocabulary_are_refused(client: httpx.Client, ids: list[int]) -> None:
    """With min_tokens they would be an index into the logits of the whole batch."""
    body = {"prompt": "a", "min_tokens": 2, "stop_token_ids": ids}
    found = error(client.post(COMPLETIONS, json=body))
    assert (found["param"], "between 0 and 287" in found["message"]) == ("stop_token_ids", True)


def test_min_tokens_with_nothing_left_to_choose(client: httpx.Client) -> None:
    body = {"prompt": "a", "min_tokens": 2, "stop_token_ids": list(range(288)), "temperature": 1}
    found = error(client.post(COMPLETIONS, json=body))
    assert found["param"] == "stop_token_ids"
    assert client.post(COMPLETIONS, json={**body, "min_tokens": 0}).status_code == 200
