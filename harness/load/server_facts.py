"""What a server says about itself before the load: model, kind, version, KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from harness.errors import BackendError, printable, shortened, without_key
from harness.kv.modes import mode_name
from harness.load.fetch import Answer, EndlessAnswerError, fetch
from harness.load.other_servers import FACT_PAGES, TGI_ROUTER, text, whole, with_facts
from harness.load.proxies import GIVE_THE_SERVER, proxy_words
from harness.load.settings import BackendAddress
from harness.load.urls import without_secrets
from harness.manifest import BackendInfo
from harness.observe.backends import OPENAI, TGI, backend_kind, detect_kind, kind_of_owner
from harness.observe.exposition import MetricsUnavailableError, PageReader

#: for each of its pages as a whole
_TIMEOUT_S = 10.0
_MAX_HEALTH_BYTES = 2**16
#: of names in messages
_NAME_LENGTH, _NAMES_SHOWN = 80, 10
_MAX_TOKEN_ID = 2**31 - 1
_REDIRECTS = (301, 302, 303, 307, 308)
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
    """Asks one server; use as a context manager. Each answer has ``timeout_s`` as a whole."""

    def __init__(
        self, address: BackendAddress, api_key: str | None, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self.address = address
        self._api_key = api_key
        self._timeout_s = timeout_s
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(headers=headers, timeout=timeout_s, trust_env=False)

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
        if not isinstance(tokens, list) or not all(_is_token(token) for token in tokens):
            return ()
        return tuple(tokens)

    def post(self, path: str, body: Facts) -> Facts | None:
        """The JSON object that a POST gives; None for anything else."""
        try:
            return self._fetch("POST", path, body).object
        except httpx.HTTPError:
            return None

    def fail(self, problem: str, remedy: str) -> BackendError:
        """An error of this server: printable whatever it said, and without the API key."""
        problem, remedy = (without_key(text, self._api_key) for text in (problem, remedy))
        return BackendError(
            self.address.name, self.address.url, printable(problem), printable(remedy)
        )

    def _fetch(self, method: str, path: str, body: Facts | None = None) -> Answer:
        url = self.address.url + path
        return fetch(self._client, method, url, within_s=self._timeout_s, body=body)

    def _model_entry(self, wanted: str | None) -> Facts:
        """The entry of the model to load in ``/v1/models``."""
        entries = {str(entry["id"]): entry for entry in self._models()}
        if wanted is not None:
            if wanted not in entries:
                raise self.fail(
                    f"does not serve the model {shortened(wanted, _NAME_LENGTH)!r}",
                    f"it serves {_names(entries) or 'none'} (--model)",
                )
            return entries[wanted]
        if not entries:
            raise self.fail("serves no model", "start it with one")
        if len(entries) > 1:
            raise self.fail("serves several models", f"choose one of {_names(entries)} (--model)")
        return next(iter(entries.values()))

    def _models(self) -> list[Facts]:
        try:
            answer = self._fetch("GET", "/v1/models")
        except httpx.HTTPError as error:
            reason = _reason(error, self._api_key)
            raise self.fail(f"cannot be reached ({reason})", _START) from error
        if answer.status in (401, 403):
            raise self.fail(
                f"refuses the API key (HTTP {answer.status})",
                "give it by OPENAI_API_KEY or --api-key",
            )
        proxy = proxy_words(answer.status, answer.headers)
        if proxy is not None:
            raise self.fail(proxy, GIVE_THE_SERVER)
        if answer.status in _REDIRECTS:
            place = shortened(without_secrets(answer.headers.get("location", "elsewhere")), 200)
            raise self.fail(f"redirects to {place}", GIVE_THE_SERVER)
        listing = (answer.object or {}).get("data")
        if not isinstance(listing, list):
            raise self.fail(
                f"is no OpenAI-style server (GET /v1/models: HTTP {answer.status})", _USE_BACKENDS
            )
        return [entry for entry in listing if isinstance(entry, dict) and _is_id(entry.get("id"))]

    def _metrics_page(self) -> str | None:
        """The text of ``/metrics``; None when there is no such page or it is not Prometheus'.

        Raises BackendError for one that has no end: it would cost a connection, and memory,
        every second of the run.
        """
        try:
            answer = self._fetch("GET", "/metrics")
            if answer.status != httpx.codes.OK:
                return None
            PageReader(()).read(answer.text)
        except EndlessAnswerError as error:
            raise self.fail(
                f"has a /metrics page that cannot be read ({error})",
                "mend the page, or let it answer 404: a server is loaded without one, too",
            ) from error
        except (httpx.HTTPError, MetricsUnavailableError):
            return None
        return answer.text

    def _get_object(self, path: str) -> Facts | None:
        try:
            return self._fetch("GET", path).object
        except httpx.HTTPError:
            return None


def is_alive(client: httpx.Client, url: str) -> bool:
    """Whether a server answers ``/health`` with anything but a server's error.

    The whole answer has the client's read timeout: one that drips is none.
    """
    within_s = client.timeout.read or _TIMEOUT_S
    try:
        answer = fetch(
            client, "GET", url + "/health", within_s=within_s, most_bytes=_MAX_HEALTH_BYTES
        )
    except httpx.HTTPError:
        return False
    return answer.status < httpx.codes.INTERNAL_SERVER_ERROR


def _is_id(name: object) -> bool:
    """Whether a model's name can be sent back: half of a surrogate pair is no text."""
    if not isinstance(name, str) or not name:
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_token(token: object) -> bool:
    return type(token) is int and 0 <= token <= _MAX_TOKEN_ID


def _names(entries: Facts) -> str:
    """The first models' names, each of a length that can be read."""
    shown = [shortened(name, _NAME_LENGTH) for name in list(entries)[:_NAMES_SHOWN]]
    return ", ".join([*shown, "..."] if len(entries) > _NAMES_SHOWN else shown)


def _tokenize_body(model: str, text: str) -> dict[str, object]:
    return {"model": model, "prompt": text, "add_special_tokens": False}


def _mode(kind: str, version: Facts) -> str:
    if kind == "vllm":
        return "paged"
    cache = text(version.get("mode"))
    if kind != "contiguous" or cache is None:
        return "default"
    return mode_name(cache, text(version.get("reserve")), text(version.get("batching")))


def _with_contiguous(info: BackendInfo, version: Facts) -> BackendInfo:
    return msgspec.structs.replace(
        info,
        dtype=text(version.get("dtype")),
        max_model_len=whole(version.get("max_model_len")) or info.max_model_len,
        max_num_seqs=whole(version.get("max_num_seqs")),
        kv_budget_bytes=whole(version.get("kv_budget_bytes")),
        kv_bytes_per_token=whole(version.get("kv_bytes_per_token")),
        kv_bits=whole(version.get("kv_bits")),
        sliding_window=whole(version.get("sliding_window")),
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
    try:
        series = PageReader((pool.metric,)).read(page).get(pool.metric)
    except MetricsUnavailableError:
        return info
    if not series:
        return info
    labels = series[0].labels
    return msgspec.structs.replace(
        info,
        kv_budget_bytes=whole(labels.get(pool.total_bytes)),
        num_blocks=whole(labels.get(pool.num_blocks or "")),
        block_size=whole(labels.get(pool.block_size or "")),
    )


def _reason(error: httpx.HTTPError, api_key: str | None) -> str:
    """Why a request failed, without the address that the message already has.

    A fault of the request itself is told by its kind only: its text could quote a header.
    """
    words = shortened(str(error), 200)
    if isinstance(error, httpx.LocalProtocolError) or (api_key and api_key in words):
        words = ""
    return words or type(error).__name__
