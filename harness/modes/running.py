"""Which cache mode a running contiguous server is in."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from harness.errors import UsageError
from harness.load.fetch import fetch
from harness.load.urls import base_url

_TIMEOUT_S = 10.0


def running_mode(url: str) -> str:
    """The name that the table gives it; raises UsageError for any other server."""
    address = base_url("--url", url)
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = fetch(client, "GET", address + "/version", within_s=_TIMEOUT_S)
    except httpx.HTTPError as error:
        words = str(error) or type(error).__name__
        raise UsageError(f"--url: {address} cannot be reached ({words}); start it") from error
    facts = answer.object or {}
    if facts.get("engine") != "contiguous":
        raise UsageError(
            f"--url: {address} is no contiguous server of kvknee; expected one started by "
            "`python -m servers.contiguous`"
        )
    return mode_name(facts)


def mode_name(facts: Mapping[str, object]) -> str:
    """From ``/version``: the cache, with its bits where it is quantized."""
    cache = str(facts.get("cache") or facts.get("mode"))
    return f"{cache}-{facts['kv_bits']}" if facts.get("kv_bits") else cache
