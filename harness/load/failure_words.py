"""The words of a failed request: short, printable, without secrets."""

from __future__ import annotations

import re

from harness.errors import printable, shortened, without_key
from harness.load.http1 import MAX_ERROR_BODY_BYTES, ResponseReader
from harness.load.payload import error_text
from harness.load.proxies import GIVE_THE_SERVER, proxy_words
from harness.load.urls import without_secrets
from harness.records import Outcome

_MAX_ERROR_CHARS = 300
MAX_REASON_CHARS = 64
#: Of longer words only this much is looked at.
_MAX_READ_CHARS = 8192
#: of a body that is no answer
_SHOWN_START = 40
#: ``user:password@`` of a URL; a password may hold what a URL should not
_CREDENTIALS = re.compile(r"(?<=//)[^/\s]*@")


def packed(response: ResponseReader) -> str:
    """How the body is packed, in words."""
    return f"the answer is packed (Content-Encoding: {response.encoding})"


def no_stream(response: ResponseReader) -> str | None:
    """What a body is that holds no event, such as a web page; None for an empty one.

    Not made printable here, as the words of ``status_failure`` are not.
    """
    start = response.body[:_MAX_READ_CHARS].decode("utf-8", "replace").strip()
    if not start:
        return None
    kind = response.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip()
    more = "..." if len(start) > _SHOWN_START else ""
    return f'{shortened(kind) or "no Content-Type"}, starts with "{start[:_SHOWN_START]}{more}"'


def shortened_words(
    text: str | None, secret: str | None, most: int = _MAX_ERROR_CHARS
) -> str | None:
    """One short printable line without the API key or a URL's credentials.

    What a terminal or a browser would obey (control and direction characters) is escaped.
    """
    if text is None:
        return None
    text = without_key(text, secret)
    text = _CREDENTIALS.sub("***@", text)[:_MAX_READ_CHARS]
    text = printable(" ".join(text.split()))
    if len(text) > most:
        text = text[: most - 3] + "..."
    return text


def status_failure(response: ResponseReader) -> tuple[Outcome, str]:
    """Class and words of a response that is not 200."""
    status = response.status or 0
    if 300 <= status < 400:
        place = response.headers.get(b"location", b"elsewhere").decode("latin-1")
        return (
            "http_error",
            f"HTTP {status}: redirected to {without_secrets(place)}; {GIVE_THE_SERVER}",
        )
    proxy = proxy_words(
        status, {k.decode("latin-1"): v.decode("latin-1") for k, v in response.headers.items()}
    )
    if proxy is not None:
        return "http_error", f"{proxy}; {GIVE_THE_SERVER}"
    if response.encoding is not None:
        words = packed(response)
    else:
        words = error_text(response.body[:MAX_ERROR_BODY_BYTES])
    kind: Outcome = "rejected" if status in (429, 503) else "http_error"
    return kind, f"HTTP {status}: {words}" if words else f"HTTP {status}"
