"""Finds the text length whose prompt has the wanted number of tokens, by the server's count.

A chat prompt passes through a template and a tokenizer that the client does not have, so
its length is measured once: ``usage.prompt_tokens`` of short requests tells the template's
share, the tokens per word, and what is left to fill with single letters.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import OptionError

#: Two text lengths, in words, that give the tokens per word.
_FEW_WORDS, _MORE_WORDS = 12, 44
_MAX_ROUNDS = 6
#: a word and the space before it are a token at least; fewer is no count of this text
_LEAST_PER_WORD = 0.5


class NoTokenCountError(Exception):
    """What the server counts is not the text's tokens; the text says what it counted."""


def calibrate(wanted_tokens: int, measure: Callable[[int, int], int]) -> tuple[int, int]:
    """(words, tail letters) of the text that comes nearest to ``wanted_tokens``.

    ``measure(words, tail)`` asks the server for the prompt tokens of such a text. Raises
    OptionError when the template alone is longer than wanted, and NoTokenCountError when
    a longer text has no more tokens.
    """
    few = measure(_FEW_WORDS, 0)
    if few > wanted_tokens:
        raise OptionError(
            "--prompt-tokens",
            wanted_tokens,
            f"{few} or more: the server's chat template and a dozen words take that many",
        )
    more = measure(_MORE_WORDS, 0)
    per_word = (more - few) / (_MORE_WORDS - _FEW_WORDS)
    if per_word < _LEAST_PER_WORD:
        raise NoTokenCountError(
            f"{few} tokens for a text of {_FEW_WORDS} words, {more} for one of {_MORE_WORDS}"
        )
    words = _FEW_WORDS + int((wanted_tokens - few) / per_word)
    tail = 0
    best = (few, _FEW_WORDS, 0)
    for _ in range(_MAX_ROUNDS):
        got = measure(words, tail)
        if abs(got - wanted_tokens) < abs(best[0] - wanted_tokens):
            best = (got, words, tail)
        missing = wanted_tokens - got
        if missing == 0:
            break
        if missing > 0:
            tail += max(1, missing // max(1, _tokens_per_letter(measure, words, tail, got)))
        elif tail + missing >= 0:
            tail += missing
        else:
            words = max(_FEW_WORDS, words + int(missing / per_word) - 1)
    return best[1], best[2]


def _tokens_per_letter(measure: Callable[[int, int], int], words: int, tail: int, got: int) -> int:
    """What eight more letters cost, per letter."""
    return round((measure(words, tail + 8) - got) / 8)
