"""One request inside the engine: what it asked for, how far it is, what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from servers.contiguous.admission import Promise
from servers.contiguous.detokenize import Detokenizer
from servers.contiguous.logprobs import TokenLogprobs
from servers.contiguous.sampling import Sampler, SamplingParams
from servers.contiguous.stopping import StopMatcher

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token, sent the moment it exists."""

    token_id: int
    #: what became readable with it; empty for half a character or a possible stop string
    text: str
    #: tokens generated so far, this one included
    generated: int
    finish_reason: FinishReason | None = None
    #: the stop string or stop token that ended it
    stop_reason: str | int | None = None
    #: where the request wants them
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The request has failed; nothing follows."""

    message: str
    #: what the HTTP status would be if no byte had been sent yet
    status: int = 500


Event = TokenEvent | ErrorEvent


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """A request's state; owned by the engine once submitted."""

    prompt_ids: list[int]
    params: SamplingParams
    sampler: Sampler
    detokenizer: Detokenizer
    #: ids that end the text, unless ``ignore_eos``
    eos_ids: frozenset[int]
    #: where its events go; called on the thread that delivers
    sink: Callable[[Event], None]
    #: monotonic seconds, None until it happened
    submitted_s: float | None = None
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    #: first token of its region, set when it is admitted; 0 without regions
    kv_start: int = 0
    #: prompt tokens stored
    prefilled: int = 0
    generated: int = 0
    last_token: int = -1
    _stops: StopMatcher = field(init=False)

    def __post_init__(self) -> None:
        self._stops = StopMatcher(self.params.stop)

    @property
    def promise(self) -> Promise:
        """The most tokens that it can ever hold."""
        return Promise(len(self.prompt_ids), self.params.max_tokens)

    def accept(self, token: int) -> TokenEvent:
        """Take the next generated token; the event tells whether it was the last."""
        self.generated += 1
        self.last_token = token
        if self._ends(token):
            known_eos = token in self.eos_ids
            return self._event(token, self._rest(""), "stop", None if known_eos else token)
        text, stop = self._readable(token)
        if stop is not None:
            return self._event(token, text, "stop", stop)
        if self.generated >= self.params.max_tokens:
            return self._last(token, text)
        return self._event(token, text, None, None)

    def _ends(self, token: int) -> bool:
        if self.generated < self.params.min_tokens:
            return False
        ends = token in self.eos_ids and not self.params.ignore_eos
        return ends or token in self.params.stop_token_ids

    def _readable(self, token: int) -> tuple[str, str | None]:
        text = self.detokenizer.add(token)
        # stop strings count only in what comes after the least number of tokens
        if self.generated < self.params.min_tokens:
            return text, None
        return self._stops.add(text)

    def _last(self, token: int, text: str) -> TokenEvent:
        """``max_tokens`` is reached: an unfinished character can still complete a stop string."""
        rest, stop = self._stops.add(self.detokenizer.flush())
        if stop is not None:
            return self._event(token, text + rest, "stop", stop)
        return self._event(token, text + rest + self._stops.flush(), "length", None)

    def _rest(self, text: str) -> str:
        return text + self._stops.flush() + self.detokenizer.flush()

    def _event(
        self, token: int, text: str, finish: FinishReason | None, stop: str | int | None
    ) -> TokenEvent:
        newest = self.sampler.newest
        return TokenEvent(token, text, self.generated, finish, stop, newest)
