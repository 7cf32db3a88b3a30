"""Whether Prometheus scrapes the very process whose metrics page is at a URL.

A container's page has another host there than here, and another port where the published
one was changed. Servers state when they started, to the hundredth of a second or finer: two
pages with the same moment are one process, two with different ones are two.
"""

from __future__ import annotations

import httpx

from harness.observe.exposition import MetricsUnavailableError, Page, PageReader
from harness.observe.prometheus_api import ApiClient, PrometheusFaultError, quoted

#: in order of preference: most servers (vLLM among them), and the contiguous one
BIRTH_NAMES = ("process_start_time_seconds", "contiguous_prompt_tokens_created")
#: both sides print the same number; a restart takes longer than this
_TOLERANCE_S = 0.02
#: a page of vLLM has 55 kB
_MAX_PAGE_BYTES = 8 * 2**20


class Birth:
    """When the process behind a metrics page started, asked for once and only when needed."""

    def __init__(
        self, url: str, timeout_s: float, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._transport = transport
        self._stated: dict[str, float] | None = None

    def is_of(self, client: ApiClient, job: str, instance: str) -> bool | None:
        """Whether this target of Prometheus is the same process; None when nobody says."""
        if self._stated is None:
            self._stated = self._read()
        for name in BIRTH_NAMES:
            ours = self._stated.get(name)
            theirs = _known(client, name, job, instance) if ours is not None else None
            if ours is not None and theirs is not None:
                return abs(ours - theirs) <= _TOLERANCE_S
        return None

    def _read(self) -> dict[str, float]:
        """What the page states now; nothing where it cannot be read."""
        try:
            with (
                httpx.Client(
                    timeout=self._timeout_s, transport=self._transport, trust_env=False
                ) as client,
                client.stream("GET", self._url) as answer,
            ):
                body = bytearray()
                for piece in answer.iter_bytes():
                    body += piece
                    if len(body) > _MAX_PAGE_BYTES:
                        return {}
                if answer.status_code != 200:
                    return {}
            page = PageReader(BIRTH_NAMES).read(body.decode("utf-8", "replace"))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, MetricsUnavailableError):
            return {}
        return _births(page)


def _births(page: Page) -> dict[str, float]:
    """Name -> moment, for what the page states once: several processes have no one birth."""
    return {name: found[0].value for name, found in page.items() if len(found) == 1}


def _known(client: ApiClient, name: str, job: str, instance: str) -> float | None:
    """The newest sample that Prometheus has; None without one, or with several."""
    selector = f"{name}{{job={quoted(job)},instance={quoted(instance)}}}"
    try:
        result = client.get("api/v1/query", query=selector)["result"]
        return float(result[0]["value"][1]) if len(result) == 1 else None
    except (PrometheusFaultError, KeyError, IndexError, TypeError, ValueError):
        return None
