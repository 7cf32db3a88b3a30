"""Text from token ids, token by token, holding back nothing but half a character.

A token need not be whole characters: byte-level vocabularies cut UTF-8 anywhere. Every
token is an event of its own all the same, with empty text if it only begins a character.
At most three bytes wait, and they come out as U+FFFD when nothing completes them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: bytes of the longest UTF-8 character; that many undecodable tokens are invalid, not unfinished
_LONGEST_CHARACTER = 4
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The state of one stream."""

    def add(self, token: int) -> str:
        """The text that this token completes; often empty, never late."""
        ...

    def flush(self) -> str:
        """What is left at the end: the bytes of an unfinished character, as U+FFFD."""
        ...


class ByteLevelDetokenizer:
    """For byte-level BPE: each token is a byte string, known in advance."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Decode its bytes; ids beyond the vocabulary (a padded model's) have none."""
        known = token < len(self._token_bytes)
        return self._decoder.decode(self._token_bytes[token]) if known else ""

    def flush(self) -> str:
        """The decoder's rest."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other vocabulary: decodes a short window, since a token's text may depend on
    its predecessor (a leading space, byte fallback), and gives what the window gained.
    """

    def __init__(self, decode: Callable[[list[int]], str], skipped: frozenset[int]) -> None:
        self._decode = decode
        self._skipped = skipped
        #: tokens whose text is out, kept as context
        self._context: list[int] = []
        #: tokens whose text is not
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        """What the window gained; empty while it ends in an unfinished character."""
        if token in self._skipped:
            return ""
        self._pending.append(token)
        text = self._gain()
        if text.endswith(_REPLACEMENT) and len(self._pending) < _LONGEST_CHARACTER:
            return ""
        return self._release(text)

    def flush(self) -> str:
        """Whatever is pending, complete or not."""
        return self._release(self._gain()) if self._pending else ""

    def _gain(self) -> str:
        before = self._decode(self._context) if self._context else ""
        return self._decode(self._context + self._pending)[len(before) :]

    def _release(self, text: str) -> str:
        self._context, self._pending = (self._context + self._pending)[-_LONGEST_CHARACTER:], []
        return text


def byte_alphabet() -> dict[str, int]:
    """Character to byte of the byte-level alphabet (GPT-2's): printable Latin-1 stands for
    itself, the other 68 bytes for U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def token_byte_table(tokenizer: Any) -> list[bytes] | None:
    """Bytes by token id for a byte-level tokenizer, special tokens empty; None for any other."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    decoder = json.loads(backend.to_str()).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        return None
    alphabet = byte_alphabet()
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    table = [b""] * (max(vocabulary.values()) + 1)
    for text, token in vocabulary.items():
        if all(character in alphabet for character in text):
            table[token] = bytes(alphabet[character] for character in text)
        else:
            table[token] = text.encode()
    for token in special_ids(tokenizer):
        table[token] = b""
    return table


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids that carry no text for a reader: beginning, end, padding, roles."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marked = {token for token, entry in added.items() if entry.special}
    return frozenset(marked | set(tokenizer.all_special_ids))


class DetokenizerFactory:
    """Makes a detokenizer per stream from a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._table = token_byte_table(tokenizer)
        self._skipped = special_ids(tokenizer)
        self._tokenizer = tokenizer

    def __call__(self) -> Detokenizer:
        """A fresh stream's state."""
        if self._table is not None:
            return ByteLevelDetokenizer(self._table)
        return WindowDetokenizer(self._decode, self._skipped)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
