"""Prompts of exact length that no prefix cache has seen. Pure.

A prompt starts with the digits of its own number and of the run's nonce, written in the
alphabet of usable tokens (or words), so that two prompts differ within the first block of
any prefix cache: within a run by their numbers, between runs against one server by the
nonce. Behind this head comes a seeded sequence, turned by the number.
"""

from __future__ import annotations

import hashlib
import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: Numbers and nonces are written with as many digits as this many values need.
_HEAD_VALUES = 2**32

#: Ids that are ordinary tokens where the server cannot be asked. Byte-level vocabularies
#: hold single bytes here; ids 0 to 16 are special in some (SmolLM2's), so they are left out.
FALLBACK_TOKENS = tuple(range(17, 256))

#: Fewer usable tokens than this are no alphabet.
MIN_ALPHABET = 16

_WORD_LIST = (
    "time year work life part home name case hand room fact side kind head line city area "
    "book idea body face door team road word game rate date term plan care text food land "
    "view type role step unit form size test love file list note rule page wall fire army "
    "deal risk skin seat song king star bank blue tree wind gold hair milk moon rain ship"
)
#: Words of equal length that are one token, with their space, in common vocabularies.
WORDS = tuple(_WORD_LIST.split())


@dataclass(frozen=True)
class TokenPrompts:
    """Prompts as token ids, all of ``length``."""

    alphabet: tuple[int, ...]
    length: int
    seed: int
    nonce: int

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)  # noqa: S311 - not for secrets
        base = draw.choices(self.alphabet, k=self.length)
        object.__setattr__(self, "_base", tuple(base))

    def prompt(self, number: int) -> tuple[int, ...]:
        """The prompt of that number, counted over the whole run."""
        base: tuple[int, ...] = self._base  # type: ignore[attr-defined]
        return tuple(_compose(self.alphabet, base, number, self.nonce))


@dataclass(frozen=True)
class ChatPrompts:
    """Prompts as text of ``words`` words and ``tail`` single letters."""

    words: int
    tail: int
    seed: int
    nonce: int

    def prompt(self, number: int) -> str:
        """The prompt of that number, counted over the whole run."""
        draw = random.Random(self.seed)  # noqa: S311 - not for secrets
        body = _compose(WORDS, draw.choices(WORDS, k=self.words), number, self.nonce)
        return " ".join([*body, *["a"] * self.tail])


def prompt_hash(prompt: Sequence[int] | str) -> str:
    """A short name of a prompt's content, to count distinct prompts."""
    data = prompt.encode() if isinstance(prompt, str) else array("Q", prompt).tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _compose(alphabet: Sequence[T], base: Sequence[T], number: int, nonce: int) -> list[T]:
    """Head and turned base, cut to the base's length; the number comes first."""
    if not base:
        return []
    head = digits(number, alphabet) + digits(nonce, alphabet)
    turn = number % len(base)
    turned = [*base[turn:], *base[:turn]]
    return (head + turned[len(head) :])[: len(base)]


def digits(value: int, alphabet: Sequence[T]) -> list[T]:
    """A number in base ``len(alphabet)``, least digit first, of fixed width."""
    base = len(alphabet)
    width = math.ceil(math.log(_HEAD_VALUES, base))
    found = []
    for _ in range(width):
        value, digit = divmod(value, base)
        found.append(alphabet[digit])
    return found
