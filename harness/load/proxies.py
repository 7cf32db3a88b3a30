"""HTTP proxies: recognised and refused. A load through one would measure the proxy.

The harness never connects through a proxy. What can be known of one is that the environment
asks for it, or that it answers in its own name (RFC 9110: 407, and Via beside an error of a
gateway). A reverse proxy that passes answers on looks like the server, and is taken for it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

GIVE_THE_SERVER = "give --backends the server that answers itself"
_PROXY_AUTHENTICATION = 407
_GATEWAY_ERRORS = (502, 504)


def proxy_variable(url: str) -> str | None:
    """The variable of the environment that would send requests to ``url`` through a proxy.

    None where there is none, NO_PROXY excepts the host, or the host is this machine itself.
    Its value is not told: it may hold a password.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies_environment()
    if _is_loopback(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    for scheme in (parts.scheme, "all"):
        if proxies.get(scheme):
            names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
            return next((name for name in names if os.environ.get(name)), names[0])
    return None


def proxy_words(status: int, header: Mapping[str, str]) -> str | None:
    """What gives an answer away as a proxy's own; None for a server's.

    ``header`` has names in lower case.
    """
    if status == _PROXY_AUTHENTICATION:
        return f"a proxy answers and asks for credentials (HTTP {status})"
    via = header.get("via")
    if status in _GATEWAY_ERRORS and via:
        return f"a proxy answers that it cannot reach the server (HTTP {status}, Via: {via[:80]})"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
