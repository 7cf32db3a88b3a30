from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan.prompts import FALLBACK_TOKENS, TokenPrompts
from harness.plan.replay_prompts import ReplayPrompts
from harness.plan.traces import TraceRow

BASE = TokenPrompts(FALLBACK_TOKENS, 8, seed=3, nonce=7)


def prompts(block_tokens: int = 16, repeat: int = 0, base: TokenPrompts = BASE) -> ReplayPrompts:
    return ReplayPrompts(base, 200, block_tokens, repeat)


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Equal leading tokens."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


@given(st.integers(0, 2**31 - 1), st.integers(1, 200), st.lists(st.integers(0, 9), max_size=13))
def test_every_prompt_has_its_length(number: int, length: int, blocks: list[int]) -> None:
    prompt = prompts().prompt(number, TraceRow(0.0, length, 1, tuple(blocks)))
    assert len(prompt) == length
    assert set(prompt) <= set(FALLBACK_TOKENS)


def test_equal_leading_ids_are_equal_leading_blocks() -> None:
    """Blocks of 16 tokens: [0, 1, 2] and [0, 1, 3] share two, 32 tokens, and not one more."""
    made = prompts()
    a = made.prompt(1, TraceRow(0.0, 48, 1, (0, 1, 2)))
    b = made.prompt(2, TraceRow(0.0, 48, 1, (0, 1, 3)))
    assert shared(a, b) == 32
    c = made.prompt(3, TraceRow(0.0, 48, 1, (4, 1, 2)))
    assert shared(a, c) == 0
    assert made.prompt(4, TraceRow(0.0, 48, 1, (0, 1, 2))) == a


def test_tokens_behind_the_ids_are_the_requests_own() -> None:
    made = prompts()
    a, b = (made.prompt(n, TraceRow(0.0, 64, 1, (0, 1))) for n in (1, 2))
    assert shared(a, b) == 32


def test_a_prompt_that_was_cut_keeps_what_it_shares_and_stays_itself() -> None:
    """[0, 1, 2] and [0, 1, 3] cut to 32 tokens: alike but for the last, their numbers.

    A number takes 5 digits of 239 tokens: 239^4 < 2^32 < 239^5.
    """
    made = prompts()
    a = made.prompt(1, TraceRow(0.0, 32, 1, (0, 1, 2)))
    b = made.prompt(2, TraceRow(0.0, 32, 1, (0, 1, 3)))
    assert shared(a, b) == 32 - 5


@given(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=9, unique=True))
def test_without_ids_prompts_differ_within_the_first_block(numbers: list[int]) -> None:
    made = prompts()
    heads = {made.prompt(n, TraceRow(0.0, 100, 1))[:16] for n in numbers}
    assert len(heads) == len(numbers)


@pytest.mark.parametrize("blocks", [(), (0, 1)])
def test_neither_a_run_nor_a_repeat_hits_what_another_cached(blocks: tuple[int, ...]) -> None:
    row = TraceRow(0.0, 32, 1, blocks)
    first = prompts().prompt(1, row)
    again = prompts(repeat=1).prompt(1, row)
    other = prompts(base=TokenPrompts(FALLBACK_TOKENS, 8, seed=3, nonce=70)).prompt(1, row)
    assert len({p[:16] for p in (first, again, other)}) == 3


def test_a_request_is_no_block_of_its_number() -> None:
    made = prompts()
    own = made.prompt(5, TraceRow(0.0, 16, 1))
    block = made.prompt(9, TraceRow(0.0, 16, 1, (5,)))
    assert own != block
