"""The exceptions that kvknee raises on purpose.

::

    KvkneeError                 anything kvknee says itself; its text is one clear line
    ├── UsageError              bad input; the command ends with exit code 2
    │   ├── OptionError         a flag or a value: names it, and what would be right
    │   ├── BackendError        a server that cannot be load-tested as asked
    │   ├── ModelConfigError    a model config that cannot be read or computed
    │   └── ResultsDirError     a results folder that cannot be written
    ├── RunDirError             a run directory that cannot be read
    ├── StackError              a local server died, or never became healthy
    ├── NightlyError            a nightly job that could not do its work; exit code 3
    ├── CalibrationError        the client could not be calibrated here
    ├── PrometheusFaultError    a Prometheus server did not give what was asked (observe)
    └── JournalError            a line could not be written (disk full); the run keeps the rest

A request that fails is not an exception: it is a record whose ``outcome`` says how
(see ``harness.records``). Only ``harness.cli`` and the Locust entry turn these
exceptions into exit codes.
"""

from __future__ import annotations

#: of an API key that is worth hiding
_MIN_KEY_LENGTH = 8


class KvkneeError(Exception):
    """Base of all; ``str()`` is one line for the user, ``exit_code`` what the shell sees."""

    exit_code = 1


class UsageError(KvkneeError):
    """Bad input, said before any load."""

    exit_code = 2


def shortened(text: str, most: int = 60) -> str:
    """``text`` itself, or its two ends when it is longer than ``most`` characters."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def printable(text: str) -> str:
    """``text`` on one line, without what a terminal would obey or cannot show.

    Such a character becomes its escape (``\\n``, ``\\x1b``): names are a user's input, error
    texts a server's.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def without_key(text: str, api_key: str | None) -> str:
    """A text that may repeat the API key, with ``***`` in its place.

    A key of fewer than 8 characters is a placeholder such as ``x`` or ``None``, no secret;
    to replace it would only spoil the text.
    """
    if api_key is None or len(api_key) < _MIN_KEY_LENGTH:
        return text
    return text.replace(api_key, "***")


class OptionError(UsageError):
    """A flag whose value is wrong; a value that is very long is shown by its ends."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        try:
            shown = shortened(repr(value))
        except ValueError:
            # an integer of more digits than Python converts
            shown = "a number of thousands of digits"
        super().__init__(f"{option}: {shown} is not valid; expected {expected}")
        self.option = option


class BackendError(UsageError):
    """A server that is unreachable, serves another model, or does not stream."""

    def __init__(self, backend: str, url: str, problem: str, remedy: str) -> None:
        super().__init__(f"backend {backend} ({url}): {problem}; {remedy}")
        self.backend = backend


class ModelConfigError(UsageError):
    """A model's config is missing, malformed, or describes a cache that is not known."""


class ResultsDirError(UsageError):
    """The results folder cannot be created or written."""


class RunDirError(KvkneeError):
    """A run directory is missing, is no run directory, or has a newer schema."""

    exit_code = 2


class StackError(KvkneeError):
    """A local server died or did not become healthy; its log's last lines were printed."""


class NightlyError(KvkneeError):
    """A nightly job could not do its work: no night was judged."""

    exit_code = 3


class CalibrationError(KvkneeError):
    """The simulated server or the client under test did not start, or failed."""


class JournalError(KvkneeError):
    """An append failed; the lines before it are intact."""
