"""What a server answered to one greedy prompt, and how that is read from its JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import KvkneeError

#: how both servers call a token in log-probabilities (``return_tokens_as_token_ids``)
_PREFIX = "token_id:"


class AnswerError(KvkneeError):
    """A server's answer that cannot be compared."""


@dataclass(frozen=True)
class Step:
    """One generated token: its log-probability, and the likeliest tokens at that place."""

    token: int
    logprob: float
    #: token id -> log-probability, the chosen one included
    top: Mapping[int, float]

    @property
    def gap(self) -> float | None:
        """How far the likeliest lies above the second; None with fewer than two.

        A difference of log-probabilities is the difference of the logits.
        """
        best = sorted(self.top.values(), reverse=True)[:2]
        return best[0] - best[1] if len(best) == 2 else None


@dataclass(frozen=True)
class Answer:
    """The tokens of one answer in order."""

    steps: tuple[Step, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(step.token for step in self.steps)


def read_answer(body: Mapping[str, Any]) -> Answer:
    """From the body of ``/v1/completions``; raises AnswerError for what is missing in it.

    Read are ``choices[0].token_ids`` and ``choices[0].logprobs`` (``token_logprobs`` and
    ``top_logprobs``, in which tokens are named by their ids).
    """
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise AnswerError("the answer has no choice")
    tokens, logprobs = choice.get("token_ids"), choice.get("logprobs")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise AnswerError("the answer has no token_ids (it must take return_token_ids)")
    if not isinstance(logprobs, dict):
        raise AnswerError("the answer has no logprobs (it must take logprobs as a number)")
    own, tops = logprobs.get("token_logprobs"), logprobs.get("top_logprobs")
    if not (isinstance(own, list) and isinstance(tops, list)) or not (
        len(own) == len(tops) == len(tokens)
    ):
        raise AnswerError("the answer's logprobs do not pair with its tokens")
    steps = (
        Step(token, _number(value), _top(top))
        for token, value, top in zip(tokens, own, tops, strict=True)
    )
    return Answer(tuple(steps))


def _number(value: object) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise AnswerError("a log-probability is no number")


def _top(top: object) -> dict[int, float]:
    if not isinstance(top, dict):
        raise AnswerError("the answer's top_logprobs are no objects")
    found: dict[int, float] = {}
    for name, value in top.items():
        number = str(name).removeprefix(_PREFIX)
        if not str(name).startswith(_PREFIX) or not number.isdecimal():
            raise AnswerError(
                "top_logprobs are not named by token ids (it must take return_tokens_as_token_ids)"
            )
        found[int(number)] = _number(value)
    return found
