"""The counts of tokens that a server states: taken, or refused with the reason. Pure.

A count that cannot be true makes the answer malformed: every rate and every time per token
would rest on it.
"""

from __future__ import annotations

#: No count of one request reaches this: the longest contexts are two orders below it, and a
#: thousand such counts still add up within 64 bits.
COUNT_LIMIT = 10**9


class Usage:
    """What the ``usage`` objects of one answer say; the last word counts."""

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.cached: int | None = None
        self.completion_tokens: int | None = None
        #: why the counts are not to be believed
        self.fault: str | None = None

    def read(self, usage: object) -> int | None:
        """The cumulative completion tokens of one usage object; None where it has none."""
        if not isinstance(usage, dict):
            return None
        details = usage.get("prompt_tokens_details")
        return self.note(
            prompt_tokens=_integer(usage, "prompt_tokens"),
            cached=_integer(details, "cached_tokens") if isinstance(details, dict) else None,
            completion_tokens=_integer(usage, "completion_tokens"),
        )

    def note(
        self, *, prompt_tokens: int | None, cached: int | None, completion_tokens: int | None
    ) -> int | None:
        """The same from its integers, None for what is not stated."""
        # most often every chunk says again what the first one said
        if prompt_tokens is not None and prompt_tokens != self.prompt_tokens:
            self.prompt_tokens = self._count("prompt_tokens", prompt_tokens, self.prompt_tokens)
        if cached is not None:
            self.cached = self._count("cached_tokens", cached, self.cached)
        if completion_tokens is None:
            return None
        before = self.completion_tokens or 0
        if before <= completion_tokens < COUNT_LIMIT:
            self.completion_tokens = completion_tokens
            return completion_tokens
        count = self._count("completion_tokens", completion_tokens, None)
        if count is not None:
            self.completion_tokens = count
            self._doubt(f"usage.completion_tokens falls from {before} to {count}")
        return count

    def _count(self, name: str, value: int, default: int | None) -> int | None:
        """A count of tokens, or the default for a number that is none."""
        if 0 <= value < COUNT_LIMIT:
            return value
        # the value itself can have thousands of digits
        size = "negative" if value < 0 else f"{COUNT_LIMIT:,} or more"
        self._doubt(f"usage.{name} is {size}: no count of tokens")
        return default

    def _doubt(self, fault: str) -> None:
        self.fault = self.fault or fault


def _integer(fields: dict[str, object], name: str) -> int | None:
    """A field that is an integer; JSON's true and false are none."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
