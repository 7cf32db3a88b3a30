"""The stock openai client against both real servers."""

from __future__ import annotations

import openai
import pytest

from tests.support.local_stack import LocalStack

pytestmark = pytest.mark.engines


@pytest.fixture(params=["paged", "contiguous"])
def client(request: pytest.FixtureRequest, stack: LocalStack) -> openai.OpenAI:
    url = stack.paged_url if request.param == "paged" else stack.contiguous_url
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)


def test_completions_stream(client: openai.OpenAI) -> None:
    with client:
        stream = client.completions.create(
            model="tiny",
            prompt="The quick brown fox",
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens == len("The quick brown fox")
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_chat_streams_and_answers_the_same_unstreamed(client: openai.OpenAI) -> None:
    with client:
        asked = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 16,
            "temperature": 0,
            "extra_body": {"ignore_eos": True},
        }
        whole = client.chat.completions.create(**asked)
        deltas = [
            chunk.choices[0].delta
            for chunk in client.chat.completions.create(**asked, stream=True)
            if chunk.choices
        ]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16


@pytest.mark.parametrize(
    ("model", "max_tokens", "says"),
    [("other", 1, "other"), ("tiny", 100_000, "100000")],
)
def test_errors_are_those_that_the_client_knows(
    client: openai.OpenAI, model: str, max_tokens: int, says: str
) -> None:
    with (
        client,
        pytest.raises((openai.BadRequestError, openai.NotFoundError), match=says),
    ):
        client.completions.create(model=model, prompt="x", max_tokens=max_tokens)
