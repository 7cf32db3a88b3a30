"""What is learned and refused before any load."""

from __future__ import annotations

import socket

import pytest

from harness.errors import BackendError, OptionError
from harness.load.client import StreamClient
from harness.load.clock import SystemClock
from harness.load.preflight import PreparedBackend, prepare
from harness.load.settings import BackendAddress
from harness.plan.prompts import FALLBACK_TOKENS, ChatPrompts, TokenPrompts
from tests.load.client_kit import make_ask, perform
from tests.load.test_settings import settings
from tests.support.fake_openai import VLLM_PAGE, FakeOpenAi, serve
from tests.support.scripted_server import DONE, Peer, Request, text_chunk


def prepared(fake: FakeOpenAi, **options: object) -> PreparedBackend:
    with serve(fake) as server:
        address = BackendAddress("paged", server.url)
        return prepare(address, settings(**options), nonce=7, clock=SystemClock())


def refusal(fake: FakeOpenAi, **options: object) -> str:
    with pytest.raises(BackendError) as caught:
        prepared(fake, **options)
    text = str(caught.value)
    assert text.startswith("backend paged (http://127.0.0.1:")
    assert "\n" not in text
    return text.partition("): ")[2]


def test_a_vllm_server() -> None:
    backend = prepared(FakeOpenAi(metrics=VLLM_PAGE, version={"version": "0.32.0"}))
    info = backend.info
    assert (info.kind, info.mode, info.model) == ("vllm", "paged", "m")
    assert (info.engine_version, info.max_model_len) == ("0.32.0", 2048)
    assert (info.kv_budget_bytes, info.num_blocks, info.block_size) == (16777216, 128, 128)
    # it does not state these, and nobody guesses
    assert (info.dtype, info.max_num_seqs, info.kv_bytes_per_token) == (None, None, None)
    assert backend.metrics_url == info.url + "/metrics"
    assert info.source == "attached"


@pytest.mark.parametrize(
    ("stated", "mode"),
    [
        ({"batching": "continuous"}, "static"),
        ({"batching": "none"}, "static/none"),
        ({"batching": "continuous", "reserve": "max"}, "static"),
        ({"batching": "continuous", "reserve": "exact"}, "static/exact"),
        ({"batching": "static", "reserve": "pow2"}, "static/pow2/batch"),
        ({"mode": "dynamic", "batching": "static", "reserve": None}, "dynamic/batch"),
    ],
)
def test_a_contiguous_server(stated: dict[str, object], mode: str) -> None:
    version: dict[str, object] = {
        "version": "0.1.0",
        "engine": "contiguous",
        "mode": "static",
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "kv_budget_bytes": 16777216,
        "kv_bytes_per_token": 1024,
        **stated,
    }
    info = prepared(FakeOpenAi(version=version)).info
    assert (info.kind, info.mode, info.dtype) == ("contiguous", mode, "bfloat16")
    assert (info.max_num_seqs, info.kv_budget_bytes, info.kv_bytes_per_token) == (8, 16777216, 1024)


def test_any_other_openai_style_server_will_do() -> None:
    backend = prepared(FakeOpenAi(models=[{"id": "org/model"}], tokenizes=False))
    info = backend.info
    assert (info.kind, info.mode, info.model) == ("openai", "default", "org/model")
    assert (info.max_model_len, backend.metrics_url) == (None, None)
    assert isinstance(backend.prompts, TokenPrompts)
    assert backend.prompts.alphabet == FALLBACK_TOKENS


def test_d96_an_empty_metrics_page_is_no_metrics_page() -> None:
    assert prepared(FakeOpenAi(metrics=" ")).metrics_url is None


def test_usable_tokens_are_those_of_ordinary_text() -> None:
    prompts = prepared(FakeOpenAi()).prompts
    assert isinstance(prompts, TokenPrompts)
    # characters are tokens there: a space, letters, digits
    assert {chr(token) for token in prompts.alphabet} == set(
        " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    )


def test_gpus_are_joined_to_their_backend() -> None:
    with serve(FakeOpenAi()) as server:
        options = settings(backends=f"paged={server.url}", gpu=["paged=GPU-1"])
        backend = prepare(options.backends[0], options, nonce=7, clock=SystemClock())
    assert backend.info.gpu_uuids == ("GPU-1",)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = BackendAddress("paged", f"http://127.0.0.1:{port}")
    with pytest.raises(BackendError) as caught:
        prepare(address, settings(), nonce=7, clock=SystemClock())
    assert "cannot be reached" in str(caught.value)
    assert "kvknee up" in str(caught.value)
    assert "--backends" in str(caught.value)


def test_the_wrong_model_name() -> None:
    text = refusal(FakeOpenAi(models=[{"id": "a"}, {"id": "b"}]), model="c")
    assert text == "does not serve the model 'c'; it serves a, b (--model)"


def test_several_models_need_a_choice() -> None:
    models: list[dict[str, object]] = [{"id": "a"}, {"id": "b"}]
    text = refusal(FakeOpenAi(models=models))
    assert text == "serves several models; choose one of a, b (--model)"
    assert prepared(FakeOpenAi(models=models), model="b").info.model == "b"


def test_no_model() -> None:
    assert refusal(FakeOpenAi(models=[])).startswith("serves no model")


def test_a_prompt_that_does_not_fit() -> None:
    text = refusal(FakeOpenAi(), prompt_tokens="2000", output_tokens="49")
    assert text.startswith("holds 2048 tokens per request, fewer than 2000 + 49")
    assert prepared(FakeOpenAi(), prompt_tokens="2000", output_tokens="48")


class Gatekeeper(FakeOpenAi):
    """Answers everything with one status."""

    def __call__(self, peer: Peer, request: Request) -> None:
        peer.reply(self.status, self.body, *self.extra)

    status: int = 0
    body: object = None
    extra: tuple[str, ...] = ()


def gatekeeper(status: int, body: object, *extra: str) -> FakeOpenAi:
    fake = Gatekeeper()
    fake.status, fake.body, fake.extra = status, body, extra
    return fake


def test_a_server_that_is_no_openai_style_server() -> None:
    text = refusal(gatekeeper(404, {"detail": "Not Found"}))
    assert text.startswith("is no OpenAI-style server (GET /v1/models: HTTP 404)")
    assert refusal(gatekeeper(200, "<html>")).startswith("is no OpenAI-style server")


def test_a_wrong_key() -> None:
    text = refusal(gatekeeper(401, {"error": {"message": "no"}}))
    assert text == "refuses the API key (HTTP 401); give it by OPENAI_API_KEY or --api-key"


def test_a_redirect() -> None:
    text = refusal(gatekeeper(301, "", "Location: http://x/"))
    assert text == "redirects to http://x/; give --backends the server that answers itself"


def streaming(answer: bytes) -> FakeOpenAi:
    """Streams this, whatever is asked, the probe included."""
    return FakeOpenAi(fault=lambda peer, _: peer.stream(answer), streams=1)


def test_a_server_that_does_not_stream() -> None:
    body = {"choices": [{"text": "x" * 8, "finish_reason": "length"}]}
    fake = FakeOpenAi(fault=lambda peer, _: peer.reply(200, body), streams=1)
    assert refusal(fake).startswith("does not stream (the answer is one JSON object")


def test_a_stream_that_holds_the_whole_answer_as_one_event() -> None:
    usage = {"completion_tokens": 8}
    answer = text_chunk("x" * 8, finish_reason="length", usage=usage) + DONE
    text = refusal(streaming(answer))
    assert text.startswith("does not stream token by token: a whole answer came as one event")


def test_an_answer_merged_by_a_busy_server_is_asked_again() -> None:
    usage = {"completion_tokens": 8}
    merged = text_chunk("x" * 8, finish_reason="length", usage=usage) + DONE
    asked = []

    def once_merged(peer: Peer, request: Request) -> None:
        asked.append(request)
        if len(asked) == 1:
            peer.stream(merged)
        else:
            fake.answer(peer, request)

    fake = FakeOpenAi(streams=1, fault=once_merged)
    prepared(fake)
    assert len(asked) == 2


def test_an_empty_answer() -> None:
    text = refusal(streaming(text_chunk("", finish_reason="stop") + DONE))
    assert text.startswith("fails a short streamed request (short_output: no token)")


def test_a_server_that_takes_no_token_ids() -> None:
    fake = FakeOpenAi(
        fault=lambda peer, _: peer.reply(400, {"error": {"message": "prompt must be text"}}),
        streams=1,
    )
    text = refusal(fake)
    assert "http_error: HTTP 400: prompt must be text" in text
    assert "--endpoint chat" in text


def test_what_the_probe_learned_is_used_by_the_load() -> None:
    fake = FakeOpenAi()

    def picky(peer: Peer, request: Request) -> None:
        if "ignore_eos" in request.json:
            peer.reply(400, {"error": {"message": "unknown field"}})
        else:
            peer.stream(text_chunk("x"), text_chunk("x", finish_reason="length"), DONE)

    fake.fault, fake.streams = picky, 1
    with serve(fake) as server:
        address = BackendAddress("paged", server.url)
        backend = prepare(address, settings(), nonce=7, clock=SystemClock())
        assert not backend.dialect.exact_length
        before = len(server.requests)
        client = StreamClient(backend.options, backend.dialect, SystemClock())
        assert perform(client, make_ask(output_tokens=2)).outcome == "ok"
        client.close()
        # one request, not two
        assert len(server.requests) == before + 1


def test_chat_prompts_are_calibrated_against_the_servers_count() -> None:
    fake = FakeOpenAi(template_tokens=9)
    with serve(fake) as server:
        address = BackendAddress("paged", server.url)
        options = settings(endpoint="chat", prompt_tokens="512")
        backend = prepare(address, options, nonce=7, clock=SystemClock())
    prompts = backend.prompts
    assert isinstance(prompts, ChatPrompts)
    # a character is a token there, and 9 belong to the template
    assert {9 + len(prompts.prompt(number)) for number in (1, 2, 99)} == {512}


def test_a_chat_prompt_shorter_than_the_template() -> None:
    with serve(FakeOpenAi(template_tokens=500)) as server:
        address = BackendAddress("paged", server.url)
        options = settings(endpoint="chat", prompt_tokens="100")
        with pytest.raises(OptionError, match="--prompt-tokens"):
            prepare(address, options, nonce=7, clock=SystemClock())


def test_a_server_that_counts_the_same_whatever_is_sent() -> None:
    class Constant(FakeOpenAi):
        def _prompt_tokens(self, request: Request) -> int:
            return 20

    text = refusal(Constant(), endpoint="chat", prompt_tokens="100")
    assert text.startswith("does not count the tokens of a chat prompt (20 tokens for a text of")
    assert "--endpoint completions" in text


def test_what_a_server_says_of_a_failed_request_is_shown_harmlessly() -> None:
    fake = FakeOpenAi(
        fault=lambda peer, _: peer.reply(500, {"error": {"message": "\x1b[31mred\u202e"}}),
        streams=1,
    )
    assert r"http_error: HTTP 500: \x1b[31mred\u202e" in refusal(fake)
