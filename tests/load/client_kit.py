"""A client for tests, with real sockets and short limits."""

from __future__ import annotations

import ssl
from typing import Any

from harness.load.client import ClientOptions, StreamClient
from harness.load.clock import Clock, SystemClock
from harness.load.dialect import Dialect, EndpointName, Prompt
from harness.load.exchange import Ask
from harness.load.http1 import Endpoint
from harness.records import CellKey, RequestRecord

CELL = CellKey("paged", "paged", 4, 3, 1.0)


def make_client(
    url: str,
    *,
    clock: Clock | None = None,
    request_timeout_s: float = 20.0,
    idle_timeout_s: float = 20.0,
    api_key: str | None = None,
    endpoint: EndpointName = "completions",
    token_ids: bool = False,
    tls: ssl.SSLContext | None = None,
) -> StreamClient:
    options = ClientOptions(
        endpoint=Endpoint.from_url(url),
        request_timeout_s=request_timeout_s,
        idle_timeout_s=idle_timeout_s,
        api_key=api_key,
        tls=tls,
    )
    dialect = Dialect("m", endpoint, prompt_tokens=4, token_ids=token_ids)
    return StreamClient(options, dialect, clock or SystemClock())


def make_ask(prompt: Prompt = (1, 2, 3, 4), output_tokens: int = 3, seq: int = 1) -> Ask:
    return Ask(
        worker="local",
        seq=seq,
        cell=CELL,
        user=0,
        t_intended_s=SystemClock().monotonic(),
        prompt=prompt,
        prompt_hash="0",
        prompt_tokens=4,
        output_tokens=output_tokens,
    )


def perform(client: StreamClient, ask: Ask | None = None) -> RequestRecord:
    """Make a request; the delivered record is the returned one, delivered once."""
    delivered: list[RequestRecord] = []
    record = client.perform(ask or make_ask(), delivered.append)
    assert delivered == [record]
    return record


def once(url: str, **options: Any) -> RequestRecord:
    """One request by a client of its own."""
    client = make_client(url, **options)
    try:
        return perform(client)
    finally:
        client.close()
