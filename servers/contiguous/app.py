"""The HTTP side: FastAPI routes over one service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from servers.contiguous.errors import QueueFullError, RequestError
from servers.contiguous.frames import ChatFrames, CompletionFrames, FrameOptions, Frames, error_body
from servers.contiguous.limits import BodyLimit
from servers.contiguous.mailbox import Mailbox
from servers.contiguous.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TokenizeRequest,
)
from servers.contiguous.responses import encode
from servers.contiguous.service import Service
from servers.contiguous.streaming import GenerationResponse

#: of a header in an error
_SHOWN = 100
_JSON = "application/json"
#: a longer text is tokenized on another thread, so that the loop goes on answering
_LONG_TEXT = 8192
_GENERATION_PATHS = ("/v1/completions", "/v1/chat/completions")
#: HTTPExceptions out of the reading of a body, with their codes
_BODY_ERRORS = {400: "invalid_body", 413: "body_too_large"}


def create_app(service: Service) -> FastAPI:
    """The application; its lifespan starts and stops the engine's thread."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.delivery.bind(asyncio.get_running_loop())
        service.engine.start()
        yield
        # the thread delivers its last events before it ends, so it is joined off the loop
        await asyncio.to_thread(service.engine.stop)
        service.delivery.unbind()

    app = FastAPI(
        title="kvknee contiguous server", version=str(service.info["version"]), lifespan=lifespan
    )
    app.add_middleware(BodyLimit)
    _add_error_handlers(app, service)
    _add_generation(app, service)
    _add_information(app, service)
    return app


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    def answer(request: Request, error: RequestError) -> Response:
        if request.url.path in _GENERATION_PATHS:
            service.metrics.requests.ended("rejected" if error.status == 503 else "invalid")
        headers = {}
        if isinstance(error, QueueFullError):
            headers["retry-after"] = str(error.retry_after_s)
        body = error_body(str(error), error.kind, error.param, error.code)
        return Response(body, error.status, headers, _JSON)

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return answer(request, error)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        if error.status_code in _BODY_ERRORS:
            code = _BODY_ERRORS[error.status_code]
            return answer(
                request, RequestError(str(error.detail), code=code, status=error.status_code)
            )
        body = error_body(str(error.detail), "invalid_request_error")
        return Response(body, error.status_code, error.headers, _JSON)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # uvicorn logs the traceback; the client gets the kind of error and nothing more
        body = error_body(f"internal error: {type(error).__name__}", "server_error")
        return Response(body, 500, None, _JSON)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return answer(request, _first_problem(error, request.headers.get("content-type")))


def _first_problem(error: RequestValidationError, content_type: str | None) -> RequestError:
    """pydantic's first complaint as one sentence that names the field."""
    problem = error.errors()[0]
    if isinstance(error.body, bytes) and error.body:
        # what is not called JSON is not read as such
        kind = content_type or "absent"
        return RequestError(
            f"Content-Type is {kind[:_SHOWN]}; expected application/json", code="content_type"
        )
    if problem["type"] == "json_invalid":
        # the place is all that "loc" holds
        reason, place = problem["ctx"]["error"], problem["loc"][-1]
        return RequestError(
            f"the body is no valid JSON: {reason} at character {place}", code="json_invalid"
        )
    field = ".".join(str(part) for part in problem["loc"] if part != "body")
    message = problem["msg"].removeprefix("Value error, ")
    text = f"{field}: {message}" if field else message
    # a rule over several fields says itself which one breaks it
    param = field or problem.get("ctx", {}).get("param")
    return RequestError(text, param=param or None, code=str(problem["type"]))


def _add_generation(app: FastAPI, service: Service) -> None:
    frontend = service.frontend

    def run(body: GenerationRequest, prompt_ids: list[int], chat: bool) -> GenerationResponse:
        mailbox = Mailbox()
        sequence = frontend.sequence(body, prompt_ids, mailbox)
        options = FrameOptions(
            model=frontend.model_name,
            prompt_ids=prompt_ids,
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
            token_ids=bool(body.return_token_ids),
        )
        frames: Frames = ChatFrames(options) if chat else CompletionFrames(options)
        service.engine.submit(sequence)
        return GenerationResponse(
            service.engine, sequence, mailbox, frames, stream=bool(body.stream)
        )

    @app.post("/v1/completions", response_class=Response)
    async def completions(body: CompletionRequest) -> Response:
        """Complete a text or a list of token ids."""
        frontend.check_model(body.model)
        prompt = body.prompt
        if isinstance(prompt, str):
            prompt = await _encode(service, prompt, body.add_special_tokens)
        return run(body, prompt, chat=False)

    @app.post("/v1/chat/completions", response_class=Response)
    async def chat(body: ChatRequest) -> Response:
        """Answer a conversation, through the model's chat template."""
        frontend.check_model(body.model)
        prompt_ids = await service.offload.run(
            frontend.encode_chat,
            body.messages,
            body.add_generation_prompt,
            body.chat_template_kwargs or {},
        )
        return run(body, prompt_ids, chat=True)


async def _encode(service: Service, text: str, add_special_tokens: bool) -> list[int]:
    if len(text) < _LONG_TEXT:
        return service.frontend.encode(text, add_special_tokens)
    return await service.offload.run(service.frontend.encode, text, add_special_tokens)


def _add_information(app: FastAPI, service: Service) -> None:
    frontend, context = service.frontend, service.frontend.loaded.max_model_len
    started = int(time.time())

    @app.get("/health", response_class=Response)
    async def health() -> Response:
        """200 while the engine's thread lives."""
        return Response(status_code=200 if service.engine.alive else 503)

    @app.get("/version", response_class=Response)
    async def version() -> Response:
        """Versions and settings."""
        return Response(encode(service.info), media_type=_JSON)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models", response_class=Response)
    async def models() -> Response:
        """The one model that is served."""
        entry = {
            "id": frontend.model_name,
            "object": "model",
            "created": started,
            "owned_by": "kvknee",
            "root": service.settings.model,
            "parent": None,
            "max_model_len": context,
        }
        return Response(encode({"object": "list", "data": [entry]}), media_type=_JSON)

    @app.post("/tokenize", response_class=Response)
    async def tokenize(body: TokenizeRequest) -> Response:
        """Token ids of a prompt or of messages."""
        frontend.check_model(body.model)
        if body.prompt is not None:
            ids = await _encode(service, body.prompt, body.add_special_tokens is not False)
        else:
            ids = await service.offload.run(
                frontend.encode_chat, body.messages or [], body.add_generation_prompt, {}
            )
        answer = {"count": len(ids), "max_model_len": context, "tokens": ids}
        return Response(encode(answer), media_type=_JSON)
