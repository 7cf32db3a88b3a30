"""What the server says to a client that asked for something it will not do.

::

    RequestError            answered with ``status`` and an OpenAI-shaped body
    └── QueueFullError      503 with Retry-After

Start-up errors are those of ``harness.errors`` (exit code 2, one line).
"""

from __future__ import annotations

SHUTTING_DOWN = "the server is shutting down"


class RequestError(Exception):
    """A request that is refused; ``str()`` is the message of the body."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def kind(self) -> str:
        """OpenAI's ``type`` of the error."""
        return "invalid_request_error" if self.status < 500 else "server_error"


def shutting_down() -> RequestError:
    """What a request is told that comes, or is not yet under way, when the server stops."""
    return RequestError(SHUTTING_DOWN, code="shutting_down", status=503)


class QueueFullError(RequestError):
    """The waiting queue is at its bound; ``retry_after_s`` goes into Retry-After."""

    def __init__(self, max_waiting: int, retry_after_s: int) -> None:
        super().__init__(
            f"the waiting queue is full (--max-waiting {max_waiting}); try again later",
            code="queue_full",
            status=503,
        )
        self.retry_after_s = retry_after_s
