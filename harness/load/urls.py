"""URLs of options: checked so far that every client of the harness can use them. Pure."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

import httpx

from harness.errors import OptionError

_EXPECTED = "a URL such as http://127.0.0.1:8000"
#: a URL may be typed with other characters, which stand in it percent-encoded (RFC 3986)
_ALLOWED = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*")
#: RFC 1123, and the underscore that container networks use
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MAX_HOST = 253


def without_secrets(url: str) -> str:
    """A URL, or what was meant as one, as it may be shown: no credentials, no query."""
    head, slashes, rest = url.partition("//")
    if "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    elif "@" in head:
        head = "***@" + head.rpartition("@")[2]
    cut = re.split(r"[?#]", rest, maxsplit=1)[0]
    return head + slashes + (cut if cut == rest else cut + "?...")


def base_url(option: str, url: str) -> str:
    """A server's URL without a trailing ``/v1``; the caller has refused credentials.

    Raises OptionError.
    """
    parts = _checked(option, url)
    if re.search(r"[?#]", url):
        raise _wrong(option, url, f"{_EXPECTED}, without ? and #: paths are added to it")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def page_url(option: str, url: str) -> str:
    """The URL of one page, which may have a query; raises OptionError."""
    if "@" in _checked(option, url).netloc:
        raise _wrong(option, url, "a URL without credentials")
    return url


def credentials_url(option: str, url: str) -> str:
    """A server's URL, ``user:password@`` allowed; raises OptionError."""
    _checked(option, url)
    if re.search(r"[?#]", url):
        raise _wrong(option, url, f"{_EXPECTED}, without ? and #: paths are added to it")
    return url


def _checked(option: str, url: str) -> SplitResult:
    if not _ALLOWED.fullmatch(url):
        raise _wrong(
            option,
            url,
            f"{_EXPECTED}, in ASCII and without spaces or control characters: other ones "
            "percent-encoded, in the host as xn--...",
        )
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise _wrong(option, url, _EXPECTED) from None
    if parts.scheme not in ("http", "https") or not port_ok or not parts.hostname:
        raise _wrong(option, url, _EXPECTED)
    if not _is_host(parts.hostname) or not _is_usable(url):
        raise _wrong(
            option,
            url,
            "a host that is an IP address or a name of labels joined by dots, each of up to 63 "
            "letters, digits and hyphens",
        )
    return parts


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    labels = host.removesuffix(".").split(".")
    return len(host) <= _MAX_HOST and all(_LABEL.fullmatch(label) for label in labels)


def _is_usable(url: str) -> bool:
    """Whether httpx can use it: it also decodes the ``xn--`` labels of a host."""
    try:
        return bool(httpx.URL(url).host)
    except (httpx.InvalidURL, UnicodeError):
        return False


def _wrong(option: str, url: str, expected: str) -> OptionError:
    return OptionError(option, without_secrets(url), expected)
