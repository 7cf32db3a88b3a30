"""Ports of this machine's own end of connections, as Linux counts them."""

from __future__ import annotations

import re
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SOCKSTAT = Path("/proc/net/sockstat")
_TIME_WAIT = re.compile(rb"^TCP:.* tw ([0-9]+)", re.M)


def ephemeral_ports(path: Path = _RANGE) -> int | None:
    """How many connections to one server address there can be; None where it is not told."""
    try:
        low, high = (int(part) for part in path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return max(high - low + 1, 0)


def time_wait(path: Path = _SOCKSTAT) -> int | None:
    """Closed connections of this machine that still hold their port (TIME_WAIT)."""
    try:
        found = _TIME_WAIT.search(path.read_bytes())
    except OSError:
        return None
    return int(found[1]) if found else None
