from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan.prompts import FALLBACK_TOKENS, WORDS, ChatPrompts, TokenPrompts, prompt_hash


def test_prompts_have_exact_length_and_ordinary_tokens() -> None:
    prompts = TokenPrompts(FALLBACK_TOKENS, 512, seed=0, nonce=7)
    for number in (1, 2, 99_999):
        prompt = prompts.prompt(number)
        assert len(prompt) == 512
        # byte tokens of a byte-level vocabulary, above SmolLM2's special ids 0 to 16
        assert all(17 <= token < 256 for token in prompt)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=20, unique=True))
def test_prompts_differ_within_the_first_block(numbers: list[int]) -> None:
    prompts = TokenPrompts(FALLBACK_TOKENS, 512, seed=0, nonce=7)
    # vLLM's smallest usual block is 16 tokens
    assert len({prompts.prompt(number)[:16] for number in numbers}) == len(numbers)


def test_two_runs_with_one_seed_differ_within_the_first_block() -> None:
    first = TokenPrompts(FALLBACK_TOKENS, 512, seed=0, nonce=1).prompt(1)
    second = TokenPrompts(FALLBACK_TOKENS, 512, seed=0, nonce=2).prompt(1)
    assert first[:16] != second[:16]
    # behind the head, which the nonce made different, the seed rules
    assert first[16:] == second[16:]


def test_prompts_are_reproducible_and_follow_the_seed() -> None:
    a, b = (TokenPrompts(FALLBACK_TOKENS, 64, seed=3, nonce=1) for _ in range(2))
    assert a.prompt(5) == b.prompt(5)
    assert a.prompt(5)[16:] != TokenPrompts(FALLBACK_TOKENS, 64, seed=4, nonce=1).prompt(5)[16:]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_prompts_shorter_than_their_head_still_differ(length: int) -> None:
    prompts = TokenPrompts(FALLBACK_TOKENS, length, seed=0, nonce=7)
    assert len(prompts.prompt(1)) == length
    # one token tells 239 prompts apart
    assert len({prompts.prompt(number) for number in range(239)}) == 239


def test_chat_prompts_have_their_words_and_differ_at_once() -> None:
    prompts = ChatPrompts(words=50, tail=3, seed=0, nonce=7)
    words = prompts.prompt(1).split(" ")
    assert len(words) == 53
    assert words[-3:] == ["a", "a", "a"]
    assert set(words[:-3]) <= set(WORDS)
    first_words = {tuple(prompts.prompt(n).split(" ")[:6]) for n in range(500)}
    assert len(first_words) == 500


def test_the_words_are_of_one_length_and_distinct() -> None:
    assert {len(word) for word in WORDS} == {4}
    assert len(set(WORDS)) == len(WORDS)


def test_the_hash_tells_prompts_apart() -> None:
    assert prompt_hash((1, 2)) == prompt_hash((1, 2))
    prompts: list[tuple[int, ...] | str] = [(1, 2), (2, 1), (258,), "1", "2"]
    assert len({prompt_hash(prompt) for prompt in prompts}) == 5
