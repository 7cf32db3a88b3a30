"""Prometheus' HTTP API as far as it is needed: every failure is one kind of exception."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec

from harness.errors import KvkneeError

#: clocks closer than this count as one: the difference is measured over a network
MIN_SKEW_S = 0.25

#: a series' labels, ``__name__`` included, as a key
Labels = tuple[tuple[str, str], ...]


class PrometheusFaultError(KvkneeError):
    """Prometheus cannot be used; the text says why. The run goes on without it."""


class ApiClient:
    """GET requests to the HTTP API, every failure as a PrometheusFaultError."""

    def __init__(self, url: str, timeout_s: float, transport: httpx.BaseTransport | None) -> None:
        self._shown = without_credentials(url)
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/",
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
        )

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **params: str) -> Any:
        """The ``data`` of an answer; raises PrometheusFaultError."""
        try:
            response = self._http.get(path, params=params)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            # an error's text could carry the URL's credentials: its type is enough
            raise PrometheusFaultError(
                f"Prometheus at {self._shown} does not answer ({type(error).__name__})"
            ) from None
        return self._data(response)

    def _data(self, response: httpx.Response) -> Any:
        if response.status_code in {401, 403}:
            raise PrometheusFaultError(
                f"Prometheus at {self._shown} refuses access (HTTP {response.status_code}); "
                "put user:password into the URL"
            )
        try:
            answer = msgspec.json.decode(response.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = None
        if not isinstance(answer, dict) or "status" not in answer:
            raise PrometheusFaultError(
                f"{self._shown} is no Prometheus server (HTTP {response.status_code}, no JSON "
                "of its API)"
            )
        if answer["status"] != "success":
            why = str(answer.get("error", "no reason given"))[:200]
            raise PrometheusFaultError(f"Prometheus at {self._shown}: {why}")
        return answer.get("data")


def without_credentials(url: str) -> str:
    """A URL without ``user:password@``."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def clock_skew_s(client: ApiClient, wall_clock: Callable[[], float]) -> float:
    """Prometheus' wall clock minus ours; 0 when they agree as far as can be measured."""
    before_s = wall_clock()
    data = client.get("api/v1/query", query="time()")
    after_s = wall_clock()
    try:
        theirs_s = float(data["result"][0])
    except (KeyError, IndexError, TypeError, ValueError):
        raise PrometheusFaultError("Prometheus does not tell its time") from None
    skew_s = theirs_s - (before_s + after_s) / 2
    return skew_s if abs(skew_s) > max(MIN_SKEW_S, after_s - before_s) else 0.0


def quoted(text: str) -> str:
    """A PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def matrix(data: Any) -> Iterator[tuple[Labels, dict[float, float]]]:
    """(labels, time -> value) of each series; values that are not finite are left out."""
    try:
        if data["resultType"] != "matrix":
            raise PrometheusFaultError(f"Prometheus sent {data['resultType']}, not samples")
        for item in data["result"]:
            samples = {float(t): float(v) for t, v in item["values"]}
            labels = tuple(sorted(item["metric"].items()))
            yield labels, {t: v for t, v in samples.items() if math.isfinite(v)}
    except (KeyError, TypeError, ValueError) as error:
        raise PrometheusFaultError(f"Prometheus' answer is malformed ({error!r})") from None
