"""The JSON object in some bytes, and the words of an error in it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

Json = Mapping[str, object]


def json_object(data: bytes) -> Json | None:
    """A JSON object, or None for anything else."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def broken_error(data: bytes) -> object | None:
    """The error in an object that is no strict JSON (NaN, half a surrogate pair), or None."""
    if b'"error"' not in data:
        return None
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value.get("error") or (value if value.get("object") == "error" else None)


def error_message(error: object) -> str:
    """The words of an error value, which may be text, an object, or something else."""
    if isinstance(error, bytes):
        return error.decode("utf-8", "replace")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else json.dumps(error, separators=(",", ":"))


def error_text(body: bytes) -> str:
    """The message of an error body: OpenAI's or FastAPI's shape, else the text itself."""
    payload = json_object(body)
    if payload is None:
        return body.decode("utf-8", "replace").strip()
    for key in ("error", "message", "detail"):
        if payload.get(key):
            return error_message(payload[key])
    return body.decode("utf-8", "replace").strip()
