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
        self.prompt_tokens = self._count(usage, "prompt_tokens", self.prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached = self._count(details, "cached_tokens", self.cached)
        count = self._count(usage, "completion_tokens", None)
        if count is not None:
            before, self.completion_tokens = self.completion_tokens, count
            if before is not None and count < before:
                self._doubt(f"usage.completion_tokens falls from {before} to {count}")
        return count

    def _count(self, usage: dict[str, object], name: str, default: int | None) -> int | None:
        """A count of tokens, or the default for anything that is none."""
        value = usage.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            return default
        if 0 <= value < COUNT_LIMIT:
            return value
        # the value itself can have thousands of digits
        size = "negative" if value < 0 else f"{COUNT_LIMIT:,} or more"
        self._doubt(f"usage.{name} is {size}: no count of tokens")
        return default

    def _doubt(self, fault: str) -> None:
        self.fault = self.fault or fault
