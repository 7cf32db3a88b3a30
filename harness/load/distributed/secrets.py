"""Keeps what is secret out of the options that Locust's master sends to its workers.

Locust puts the master's whole command line into every message that starts users. Options
that may hold a secret are taken out as soon as they are read; each process uses its own.
"""

from __future__ import annotations

from typing import Any

#: the key, and an address that may hold a password
_SECRET = ("api_key", "prometheus_url")


def take_secrets(options: Any, taken: dict[str, object]) -> dict[str, object]:
    """Move them from Locust's options; those that are empty there keep what was taken."""
    found = {name: getattr(options, name, None) for name in _SECRET}
    for name in _SECRET:
        if hasattr(options, name):
            setattr(options, name, "")
    return taken | {name: value for name, value in found.items() if value}
