"""Keeps the master's options to itself.

Locust puts the master's whole command line, an API key and whatever else it holds, into every
message that starts users, and a worker then spends some tenths of a second in comparing it
with its own, in which it measures nothing. Our workers need none of it.
"""

from __future__ import annotations

from typing import Any


def veiled(options: Any) -> Any:
    """Options that can be read and set as before, and of which ``vars`` shows nothing."""

    class Veiled:
        """Passes everything on to the real ones."""

        def __getattr__(self, name: str) -> Any:
            return getattr(options, name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(options, name, value)

    return Veiled()
