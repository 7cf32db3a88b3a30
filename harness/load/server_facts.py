"""What a server says about itself before the load: model, kind, version, KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from harness.errors import BackendError
from harness.load.other_servers import FACT_PAGES, TGI_ROUTER, text, whole, with_facts
from harness.load.settings import BackendAddress
from harness.observe.backends import OPENAI, TGI, backend_kind, detect_kind, kind_of_owner
from harness.observe.exposition import MetricsUnavailableError, PageReader
from harness.records import BackendInfo

_TIMEOUT_S = 10.0
_USE_BACKENDS = "name running servers with --backends name=url,..."
_START = f"start it (kvknee up starts the local ones), or {_USE_BACKENDS}"

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class ServerFacts:
    """A server as it describes itself."""

    info: BackendInfo
    #: None when it has no metrics page
    metrics_url: str | None


class ServerProbe:
    """Asks one server; use as a context manager."""

    def __init__(
        self,
        address: BackendAddress,
        api_key: str | None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(
            headers=headers, timeout=_TIMEOUT_S, trust_env=False, transport=transport
        )

    def __enter__(self) -> ServerProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def describe(self, model: str | None) -> ServerFacts:
        """All that the server tells; raises BackendError when it cannot be loaded."""
        entry = self._model_entry(model)
        page = self._metrics_page()
        version = self._get_object("/version") or {}
        kind = self._kind(page, version, entry)
        info = BackendInfo(
            name=self.address.name,
            url=self.address.url,
            kind=kind,
            mode=_mode(kind, version),
            model=str(entry["id"]),
            engine_version=text(version.get("version")),
            max_model_len=whole(entry.get("max_model_len")),
        )
        if kind == "contiguous":
            info = _with_contiguous(info, version)
        elif kind == "vllm" and page is not None:
            info = _with_vllm(info, page)
        elif kind in FACT_PAGES:
            info = with_facts(info, self._get_object(FACT_PAGES[kind]) or {})
        return ServerFacts(info, self.address.url + "/metrics" if page is not None else None)

    def _kind(self, page: str | None, version: Facts, entry: Facts) -> str:
        """By its metrics, by what it says of itself, by whom its model belongs to."""
        if version.get("engine") == "contiguous":
            return "contiguous"
        kind = detect_kind(page) if page is not None else OPENAI.kind
        if kind == OPENAI.kind:
            kind = kind_of_owner(entry.get("owned_by"))
        if kind == OPENAI.kind and (self._get_object("/info") or {}).get("router") == TGI_ROUTER:
            kind = TGI.kind
        return kind

    def tokenize(self, model: str, text: str) -> tuple[int, ...]:
        """The token ids of a text; empty when the server has no such call."""
        answer = self.post("/tokenize", _tokenize_body(model, text))
        tokens = answer.get("tokens") if answer else None
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            return ()
        return tuple(tokens)

    def post(self, path: str, body: Facts) -> Facts | None:
        """The JSON object that a POST gives; None for anything else."""
        try:
            answer = self._client.post(self.address.url + path, json=dict(body))
        except httpx.HTTPError:
            return None
        return _object(answer)

    def fail(self, problem: str, remedy: str) -> BackendError:
        """An error of this server."""
        return BackendError(self.address.name, self.address.url, problem, remedy)

    def _model_entry(self, wanted: str | None) -> Facts:
        """The entry of the model to load in ``/v1/models``."""
        listing = self._models()
        entries = {str(entry["id"]): entry for entry in listing}
        if wanted is not None:
            if wanted not in entries:
                raise self.fail(
                    f"does not serve the model {wanted!r}",
                    f"it serves {', '.join(entries) or 'none'} (--model)",
                )
            return entries[wanted]
        if not entries:
            raise self.fail("serves no model", "start it with one")
        if len(entries) > 1:
            raise self.fail(
                "serves several models", f"choose one of {', '.join(entries)} (--model)"
            )
        return next(iter(entries.values()))

    def _models(self) -> list[Facts]:
        url = self.address.url + "/v1/models"
        try:
            answer = self._client.get(url)
        except httpx.HTTPError as error:
            raise self.fail(f"cannot be reached ({_reason(error)})", _START) from error
        if answer.status_code in (401, 403):
            raise self.fail(
                f"refuses the API key (HTTP {answer.status_code})",
                "give it by OPENAI_API_KEY or --api-key",
            )
        if answer.is_redirect:
            place = answer.headers.get("location", "elsewhere")
            raise self.fail(
                f"redirects to {place}", "give --backends the server that answers itself"
            )
        listing = (_object(answer) or {}).get("data")
        if not isinstance(listing, list):
            raise self.fail(
                f"is no OpenAI-style server (GET /v1/models: HTTP {answer.status_code})",
                _USE_BACKENDS,
            )
        return [entry for entry in listing if isinstance(entry, dict) and "id" in entry]

    def _metrics_page(self) -> str | None:
        """The text of ``/metrics``; None when there is no such page or it is not Prometheus'."""
        try:
            answer = self._client.get(self.address.url + "/metrics")
            if answer.status_code != httpx.codes.OK:
                return None
            PageReader(()).read(answer.text)
        except (httpx.HTTPError, MetricsUnavailableError):
            return None
        return answer.text

    def _get_object(self, path: str) -> Facts | None:
        try:
            return _object(self._client.get(self.address.url + path))
        except httpx.HTTPError:
            return None


def answers(client: httpx.Client, url: str) -> bool:
    """Whether a server answers ``/health`` with anything but a server's error."""
    try:
        return client.get(url + "/health").status_code < httpx.codes.INTERNAL_SERVER_ERROR
    except httpx.HTTPError:
        return False


def _tokenize_body(model: str, text: str) -> dict[str, object]:
    return {"model": model, "prompt": text, "add_special_tokens": False}


def _mode(kind: str, version: Facts) -> str:
    if kind == "vllm":
        return "paged"
    if kind == "contiguous" and isinstance(version.get("mode"), str):
        plain = version.get("batching") == "none"
        return f"{version['mode']}-batching-none" if plain else str(version["mode"])
    return "default"


def _with_contiguous(info: BackendInfo, version: Facts) -> BackendInfo:
    return msgspec.structs.replace(
        info,
        dtype=text(version.get("dtype")),
        max_model_len=whole(version.get("max_model_len")) or info.max_model_len,
        max_num_seqs=whole(version.get("max_num_seqs")),
        kv_budget_bytes=whole(version.get("kv_budget_bytes")),
        kv_bytes_per_token=whole(version.get("kv_bytes_per_token")),
        threads=whole(version.get("threads")),
        prefill_chunk=whole(version.get("prefill_chunk")),
        libraries=_libraries(version),
    )


def _libraries(version: Facts) -> str | None:
    """What the server computes with, such as ``torch 2.13.0+cpu, transformers 5.19.0``."""
    stated = {name: text(version.get(name)) for name in ("torch", "transformers")}
    return ", ".join(f"{name} {number}" for name, number in stated.items() if number) or None


def _with_vllm(info: BackendInfo, page: str) -> BackendInfo:
    """The KV pool, from the labels of vLLM's cache info metric."""
    pool = backend_kind("vllm").pool
    if pool is None:
        return info
    series = PageReader((pool.metric,)).read(page).get(pool.metric)
    if not series:
        return info
    labels = series[0].labels
    return msgspec.structs.replace(
        info,
        kv_budget_bytes=whole(labels.get(pool.total_bytes)),
        num_blocks=whole(labels.get(pool.num_blocks or "")),
        block_size=whole(labels.get(pool.block_size or "")),
    )


def _reason(error: httpx.HTTPError) -> str:
    """Why a request failed, without the address that the message already has."""
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {_TIMEOUT_S:g} s"
    return str(error) or type(error).__name__


def _object(answer: httpx.Response) -> Facts | None:
    if answer.status_code != httpx.codes.OK:
        return None
    try:
        value = answer.json()
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
