"""Text comes out token by token, late by at most the bytes of one character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from servers.contiguous.detokenize import (
    ByteLevelDetokenizer,
    DetokenizerFactory,
    WindowDetokenizer,
    byte_alphabet,
    special_ids,
    token_byte_table,
)
from tests.contiguous.support import BOS, EOS, byte_tokenizer

TOKENIZER = byte_tokenizer()
TABLE = token_byte_table(TOKENIZER)


def byte_ids(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


def pieces(made: Any, ids: list[int]) -> list[str]:
    return [*(made.add(token) for token in ids), made.flush()]


def test_f116_half_a_character_is_an_event_with_empty_text() -> None:
    """A Chinese character is 3 bytes, an emoji 4: nothing, nothing, then all of it."""
    made = DetokenizerFactory(TOKENIZER)()
    assert pieces(made, byte_ids("中")) == ["", "", "中", ""]
    assert pieces(made, byte_ids("🎉")) == ["", "", "", "🎉", ""]


def test_f116_nothing_waits_for_a_space_or_a_newline() -> None:
    """A URL and the beginning of JSON come out letter by letter, symbols at once."""
    for text in ("https://example.com/aaaa", '{"', "."):
        made = DetokenizerFactory(TOKENIZER)()
        assert pieces(made, byte_ids(text)) == [*text, ""]


def test_pending_bytes_come_out_at_the_end() -> None:
    made = DetokenizerFactory(TOKENIZER)()
    assert pieces(made, byte_ids("中")[:2]) == ["", "", "\ufffd"]


def test_special_and_unknown_tokens_have_no_text() -> None:
    """A padded vocabulary has ids that the tokenizer does not know."""
    made = DetokenizerFactory(TOKENIZER)()
    assert pieces(made, [BOS, *byte_ids("a"), EOS, 280]) == ["", "a", "", "", ""]


def test_alphabet_is_the_tokenizers() -> None:
    """Against the library: every byte, decoded by itself."""
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert set(alphabet) == set(TOKENIZER.get_vocab()) - {"<|bos|>", "<|eos|>", "<|pad|>"}
    for text in ("a", " ", "\n", "\x00", "\x7f"):
        assert [alphabet[c] for c in TOKENIZER.convert_ids_to_tokens(byte_ids(text))] == [ord(text)]


@given(st.lists(st.integers(0, 258), max_size=40))
def test_any_tokens_give_the_text_that_the_tokenizer_gives(ids: list[int]) -> None:
    assert TABLE is not None
    made = ByteLevelDetokenizer(TABLE)
    expected = TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert "".join(pieces(made, ids)) == expected


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Word pieces with a leading-space mark, and byte fallback, as Llama 2 has them."""
    words = ["<unk>", "<s>", "\u2581hello", "\u2581world", "ly", "!", "\u2581"]
    words += [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: index for index, word in enumerate(words)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token=None
    )


def test_window_keeps_spaces_between_words_and_not_before_the_first() -> None:
    made = DetokenizerFactory(sentencepiece_like())()
    assert isinstance(made, WindowDetokenizer)
    assert pieces(made, [1, 2, 3, 4, 5]) == ["", "hello", " world", "ly", "!", ""]


def test_window_and_byte_fallback() -> None:
    """U+4E2D is E4 B8 AD; the ids of bytes begin at 7."""
    ids = [7 + byte for byte in "中".encode()]
    made = DetokenizerFactory(sentencepiece_like())()
    assert pieces(made, [2, *ids, 3]) == ["hello", "", "", "中", " world", ""]
    assert pieces(DetokenizerFactory(sentencepiece_like())(), ids[:2]) == ["", "", "\ufffd\ufffd"]


@pytest.mark.parametrize("length", [1, 3, 5, 9])
def test_window_lets_invalid_bytes_out_after_one_character_length(length: int) -> None:
    """A run of continuation bytes never becomes a character: at most 3 tokens wait."""
    made = DetokenizerFactory(sentencepiece_like())()
    out = pieces(made, [7 + 0x80] * length)
    assert "".join(out) == "\ufffd" * length
    assert max(len(piece) for piece in out) <= 4


def test_special_ids() -> None:
    assert {BOS, EOS} <= special_ids(TOKENIZER)
