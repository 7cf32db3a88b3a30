from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.errors import OptionError
from harness.load.chat_length import NoTokenCountError, calibrate


def counter(template: float, per_word: float, per_letter: float) -> Callable[[int, int], int]:
    return lambda words, tail: int(template + per_word * words + per_letter * tail)


@pytest.mark.parametrize(
    ("template", "per_word", "per_letter"),
    [
        (20, 1, 1),  # common words are one token each
        (20, 5, 2),  # a byte-level vocabulary: four letters and a space
        (3, 1.25, 1),  # some words are two tokens
    ],
)
@pytest.mark.parametrize("wanted", [96, 512, 4097])
def test_the_wanted_count_is_met(
    wanted: int, template: float, per_word: float, per_letter: float
) -> None:
    measure = counter(template, per_word, per_letter)
    got = measure(*calibrate(wanted, measure))
    assert abs(got - wanted) <= per_letter


def test_too_short_is_said() -> None:
    # 30 + 12 words = 42 tokens at least
    with pytest.raises(OptionError, match="expected 42 or more"):
        calibrate(41, counter(30, 1, 1))


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        # the same for 12 words and 44, fewer, and 0.25 more per word
        ((20, 20), "20 tokens for a text of 12 words, 20 for one of 44"),
        ((20, 5), "20 tokens for a text of 12 words, 5 for one of 44"),
        ((20, 28), "20 tokens for a text of 12 words, 28 for one of 44"),
    ],
)
def test_a_count_that_does_not_grow_with_the_text(counts: tuple[int, int], said: str) -> None:
    left = list(counts)
    with pytest.raises(NoTokenCountError, match=said):
        calibrate(100, lambda *_: left.pop(0))
