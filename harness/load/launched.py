"""Completes what a server says about itself by how this machine's stack launched it."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from harness.manifest import BackendInfo
from harness.stack.state import LaunchedBackend

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

#: Facts that only the launch knows where the server does not state them.
_FACTS = (
    "dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_budget_bytes",
    "kv_bytes_per_token",
    "block_size",
    "threads",
    "prefill_chunk",
    "libraries",
)


def launched_as(info: BackendInfo, launched: Iterable[LaunchedBackend]) -> LaunchedBackend | None:
    """The launched server that this is: same address, and the same model inside."""
    for backend in launched:
        same_place = _address(backend.url) == _address(info.url)
        if same_place and backend.served_model_name == info.model:
            return backend
    return None


def complete(info: BackendInfo, launch: LaunchedBackend) -> BackendInfo:
    """What the server states, and from its launch what it does not state."""
    missing = {fact: getattr(launch, fact) for fact in _FACTS if getattr(info, fact) is None}
    return msgspec.structs.replace(info, **missing, source="launched")


def is_local(url: str) -> bool:
    """Whether a URL leads to this machine, where this machine's stack could be behind it."""
    return _address(url)[0] == "loopback"


def _address(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return ("loopback" if host in _LOOPBACK else host, parts.port)
