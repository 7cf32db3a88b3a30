"""The API: paths, checks, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
import random
import time
from urllib.parse import parse_qs, urlsplit

import msgspec

from harness import __version__
from harness.plan.prompts import prompt_hash
from servers.simulated.connection import MAX_BODY_BYTES, Connection, Request
from servers.simulated.engine import Engine
from servers.simulated.frames import Frames, error_body
from servers.simulated.reply import Reply, Script
from servers.simulated.requests import BadRequestError, Job, read_job, read_tokenize
from servers.simulated.settings import ServerSettings
from servers.simulated.trickle import Trickle
from servers.simulated.truth import Truth
from servers.simulated.truth_page import send_truth

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_JOBS = {"/v1/completions": False, "/v1/chat/completions": True}
_GETS = ("/v1/models", "/health", "/version", "/metrics", "/truth")
_POSTS = (*_JOBS, "/tokenize", "/truth/reset")


class Frontend:
    """Answers requests; the engine decides when tokens come."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: ServerSettings, engine: Engine
    ) -> None:
        self._loop, self._settings, self._engine = loop, settings, engine
        self._created = int(time.time())
        self.truth = Truth()

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer one request."""
        url = urlsplit(request.target)
        path = url.path
        if len(request.body) > MAX_BODY_BYTES:
            words = f"a body of more than {MAX_BODY_BYTES} bytes"
            connection.respond(413, error_body(words, "invalid_request_error", 413))
        elif path not in _GETS + _POSTS:
            words = f"no such path; there are {', '.join(_GETS + _POSTS)}"
            connection.respond(404, error_body(words, "not_found", 404))
        elif request.method != ("GET" if path in _GETS else "POST"):
            allowed = "GET" if path in _GETS else "POST"
            words = f"{path} takes {allowed}"
            connection.respond(405, error_body(words, "method_not_allowed", 405), allow=allowed)
        else:
            self._answer(connection, request, path, url.query)

    def _answer(self, connection: Connection, request: Request, path: str, query: str) -> None:
        try:
            if path in _JOBS:
                self._generate(connection, request, chat=_JOBS[path])
            elif path == "/truth":
                since = _since(query)
                send_truth(connection, self._loop, self.truth.ended[since:])
            elif path == "/metrics":
                connection.respond(200, self._engine.metrics().encode(), _PROMETHEUS)
            elif path == "/health":
                connection.respond(200, b"", "text/plain")
            else:
                connection.respond(200, msgspec.json.encode(self._page(path, request.body)))
        except BadRequestError as error:
            body = error_body(str(error), "BadRequestError", 400)
            connection.respond(400, body)

    def _page(self, path: str, body: bytes) -> object:
        """The JSON of the small pages."""
        settings = self._settings
        if path == "/version":
            return {"version": __version__, **self._engine.version()}
        if path == "/truth/reset":
            return {"forgotten": self.truth.reset()}
        if path == "/tokenize":
            tokens = read_tokenize(body)
            return {"tokens": tokens, "count": len(tokens), "max_model_len": settings.max_model_len}
        entry = {
            "id": settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "kvknee",
            "max_model_len": settings.max_model_len,
        }
        return {"object": "list", "data": [entry]}

    def _generate(self, connection: Connection, request: Request, *, chat: bool) -> None:
        settings = self._settings
        job = read_job(
            request.body, chat=chat, model=settings.model, max_model_len=settings.max_model_len
        )
        self._engine.check(job)
        entry = self.truth.begin(
            prompt_hash(job.prompt), job.asked.prompt_tokens, request.t_received_s
        )
        entry.id = f"{'chatcmpl' if chat else 'cmpl'}-{entry.number}"
        fault = settings.faults.of(entry.number)
        entry.fault = fault.kind if fault else None
        reply = Reply(
            connection,
            Script(
                sizes=self._engine.sizes(job, entry.number),
                finish="length",
                stream=job.stream,
                fault=fault,
                seed=random.Random(f"{settings.seed}/bytes/{entry.number}").getrandbits(32),  # noqa: S311
            ),
            Frames(job.asked, entry.id, self._created, settings.model),
            settings.wire,
            (self.truth, entry),
            self._trickle(connection, entry.fault, job),
        )
        if reply.begin():
            self._engine.serve(reply, job, entry.number)

    def _trickle(self, connection: Connection, fault: str | None, job: Job) -> Trickle | None:
        slow = self._settings.wire.framing.split or fault == "slow-headers"
        return Trickle(self._loop, connection.link) if slow and job.stream else None


def _since(query: str) -> int:
    """The number of requests to leave out; raises BadRequestError."""
    text = parse_qs(query).get("since", ["0"])[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadRequestError(f"since: {text!r} is no number of requests")
    return int(text)
