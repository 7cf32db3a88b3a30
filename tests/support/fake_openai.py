"""An OpenAI-style server for tests of the load: answers at once, with faults on demand.

It states whatever a test wants to be read. The times of its tokens mean nothing: servers
with known times lie elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.scripted_server import (
    DONE,
    PATIENCE_S,
    Peer,
    Request,
    ScriptedServer,
    sse,
    text_chunk,
)

Answer = Callable[[Peer, Request], None]

VLLM_PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",kv_cache_memory_bytes="16777216",num_gpu_blocks="128"} 1.0
"""


@dataclass
class FakeOpenAi:
    """What the server is; the object itself is the script of a ScriptedServer."""

    models: list[dict[str, object]] = field(
        default_factory=lambda: [{"id": "m", "max_model_len": 2048}]
    )
    #: None: there is no such page
    metrics: str | None = None
    version: dict[str, object] | None = None
    #: further pages of JSON, by path
    pages: dict[str, object] = field(default_factory=dict)
    #: characters are tokens, as in a byte-level vocabulary; False: no such call
    tokenizes: bool = True
    #: used instead of the stream from the second streamed request on: the first is the probe
    fault: Answer | None = None
    #: while clear, streams but the first (the probe) stop after their first token
    gate: threading.Event = field(default_factory=threading.Event)
    streams: int = 0
    #: chat template's own tokens, and tokens per character
    template_tokens: int = 9

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self, peer: Peer, request: Request) -> None:
        if request.method == "GET":
            self._get(peer, request.path)
        elif request.path == "/tokenize" and self.tokenizes:
            tokens = [ord(char) for char in str(request.json["prompt"])]
            peer.reply(200, {"tokens": tokens, "count": len(tokens)})
        elif request.json.get("stream"):
            self._stream(peer, request)
        elif request.path == "/v1/chat/completions":
            peer.reply(200, {"usage": {"prompt_tokens": self._prompt_tokens(request)}})
        else:
            peer.reply(404, {"detail": "Not Found"})

    def _get(self, peer: Peer, path: str) -> None:
        pages: dict[str, object] = {
            "/v1/models": {"object": "list", "data": self.models},
            "/health": "",
            "/metrics": self.metrics,
            "/version": self.version,
            **self.pages,
        }
        page = pages.get(path)
        if page is None:
            peer.reply(404, {"detail": "Not Found"})
        else:
            peer.reply(200, page)

    def _prompt_tokens(self, request: Request) -> int:
        if "prompt" in request.json:
            prompt = request.json["prompt"]
            assert isinstance(prompt, list)
            return len(prompt)
        messages = request.json["messages"]
        assert isinstance(messages, list)
        return self.template_tokens + len(messages[0]["content"])

    def _stream(self, peer: Peer, request: Request) -> None:
        self.streams += 1
        if self.fault is not None and self.streams > 1:
            self.fault(peer, request)
            return
        self.answer(peer, request)

    def answer(self, peer: Peer, request: Request) -> None:
        """Stream a whole answer, token by token."""
        asked = request.json["max_tokens"]
        assert isinstance(asked, int)
        prompt_tokens = self._prompt_tokens(request)
        peer.headers()
        for number in range(1, asked + 1):
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": number}
            last = "length" if number == asked else None
            peer.chunk(text_chunk("x", usage=usage, finish_reason=last))
            if number == 1 and self.streams > 1:
                self.gate.wait(PATIENCE_S)
        total = {"prompt_tokens": prompt_tokens, "completion_tokens": asked}
        peer.chunk(sse({"choices": [], "usage": total}) + DONE)
        peer.end()


def serve(server: FakeOpenAi) -> ScriptedServer:
    """The server, not started: use it as a context manager."""
    return ScriptedServer(server)
