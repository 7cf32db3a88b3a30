"""What the front end asks of an engine: when tokens come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from servers.simulated.reply import Reply
from servers.simulated.requests import Job


class Engine(Protocol):
    """Decides when the next chunk of each answer is due."""

    def check(self, job: Job) -> None:
        """Refuse what could never be served; raises BadRequestError."""
        ...

    def sizes(self, job: Job, number: int) -> list[int]:
        """Tokens of each chunk of the answer to request ``number``."""
        ...

    def serve(self, reply: Reply, job: Job, number: int) -> None:
        """Take up a request whose answer has begun: call ``reply.chunk`` from now on."""
        ...

    def metrics(self) -> str:
        """The page ``/metrics``."""
        ...

    def version(self) -> Mapping[str, object]:
        """What ``/version`` says beside the version."""
        ...

    def close(self) -> None:
        """End: no token comes any more."""
        ...
