"""What was really written, and when: one line of JSON per request that has ended.

Times are CLOCK_MONOTONIC seconds (``time.monotonic``), the clock of every process of this
machine, taken just before the bytes are handed to the kernel.
"""

from __future__ import annotations

from array import array

import msgspec

IN_PROGRESS = "in progress"


class RequestTruth:
    """One request; the arrays grow by one entry per chunk that carries tokens."""

    __slots__ = (
        "blocked",
        "fault",
        "id",
        "number",
        "outcome",
        "prompt_hash",
        "prompt_tokens",
        "t_due_s",
        "t_received_s",
        "token_s",
        "tokens",
    )

    def __init__(self, number: int, prompt_hash: str, prompt_tokens: int, t_received_s: float):
        self.number = number
        self.id = ""
        self.prompt_hash = prompt_hash
        self.prompt_tokens = prompt_tokens
        self.t_received_s = t_received_s
        #: the fault that was planned for it
        self.fault: str | None = None
        #: ``ok``, ``disconnected``, ``refused`` (a bad request) or the fault that struck
        self.outcome = IN_PROGRESS
        self.token_s = array("d")
        #: when each chunk was due; empty where the mode has no schedule
        self.t_due_s = array("d")
        self.tokens = array("H")
        #: writes that the kernel did not take whole, so that bytes left later than stated
        self.blocked = 0

    def line(self) -> bytes:
        """Its line of ``/truth``, with the line's end."""
        fields: dict[str, object] = {
            "number": self.number,
            "id": self.id,
            "prompt_hash": self.prompt_hash,
            "prompt_tokens": self.prompt_tokens,
            "t_received_s": self.t_received_s,
            "token_s": self.token_s.tolist(),
            "t_due_s": self.t_due_s.tolist(),
            "tokens": self.tokens.tolist(),
            "fault": self.fault,
            "outcome": self.outcome,
            "blocked_writes": self.blocked,
        }
        return msgspec.json.encode(fields) + b"\n"


class Truth:
    """All requests that have ended, in the order of their end."""

    def __init__(self) -> None:
        self.ended: list[RequestTruth] = []
        #: numbers are given to requests as they arrive, and never reused
        self.begun = 0

    def begin(self, prompt_hash: str, prompt_tokens: int, t_received_s: float) -> RequestTruth:
        """A request was read completely at that time."""
        entry = RequestTruth(self.begun, prompt_hash, prompt_tokens, t_received_s)
        self.begun += 1
        return entry

    def end(self, entry: RequestTruth, outcome: str) -> None:
        """It is over; only the first call counts."""
        if entry.outcome == IN_PROGRESS:
            entry.outcome = outcome
            self.ended.append(entry)

    def reset(self) -> int:
        """Forget what has ended; returns how many requests that were."""
        count = len(self.ended)
        self.ended = []
        return count
