"""What the outcomes of requests tell of a backend that may be gone."""

from __future__ import annotations

from harness.load.phases import Phase
from harness.records import Outcome

#: Outcomes after which the server may be gone; a proxy answers for it with an HTTP error.
NO_ANSWER: frozenset[Outcome] = frozenset(
    {"connect", "reset", "truncated", "timeout", "http_error"}
)


def unanswered(count: int, n_ok: int, phase: Phase, users: int) -> bool | None:
    """Whether the last request of every user (``count`` of ``users``) got no answer.

    None while nothing tells: none has succeeded at this level, and not all have failed; or
    the level is ending. What was known of the server before still holds then.
    """
    if phase.may_send and count == users:
        return True
    return None if n_ok == 0 or not phase.may_send else False
