"""Answers held against each other: what is a tie, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from harness.equivalence.answers import Answer, AnswerError, Step, read_answer
from harness.equivalence.compare import Comparison, compare_answers, tie_gap_of
from harness.equivalence.session import make_prompts
from harness.equivalence.settings import read_settings
from harness.equivalence.text import cost_lines, difference_lines, verdict_line
from harness.errors import UsageError
from tests.support.fake_server import paged_info, static_info


def answer(*steps: tuple[int, dict[int, float]]) -> Answer:
    return Answer(tuple(Step(token, top[token], top) for token, top in steps))


SURE = (5, {5: -0.1, 6: -3.0})


def test_the_same_tokens_are_the_same_and_their_errors_are_measured() -> None:
    # log-probabilities differ by 0.02 and 0.04: 0.03 on average
    other = answer((5, {5: -0.12, 6: -2.9}), (5, {5: -0.14, 6: -2.9}))
    found = compare_answers(0, 16, answer(SURE, SURE), other, 0.1)
    assert (found.verdict, found.agreed, found.length) == ("same", 2, 2)
    assert found.mean_logprob_error == pytest.approx(0.03)
    assert found.max_logprob_error == pytest.approx(0.04)
    assert found.divergence is None


@pytest.mark.parametrize(
    ("bound", "verdict"),
    # one server holds the two 0.06 apart, the other 0.02: a tie where 0.02 < bound and 0.06 < 2 x
    # bound; 0.03 is too small for the wider one, 0.015 for both
    [(0.1, "tie"), (0.0301, "tie"), (0.03, "different"), (0.015, "different")],
)
def test_a_difference_within_the_bound_is_a_tie(bound: float, verdict: str) -> None:
    reference = answer(SURE, (7, {7: -1.0, 8: -1.06}))
    other = answer(SURE, (8, {8: -1.0, 7: -1.02}))
    found = compare_answers(3, 16, reference, other, bound)
    assert (found.verdict, found.agreed) == (verdict, 1)
    at = found.divergence
    assert at is not None
    assert (at.step, at.tokens, at.own, at.others) == (1, (7, 8), (-1.0, -1.0), (-1.06, -1.02))
    assert at.gaps == pytest.approx((0.06, 0.02))


def test_one_server_that_is_sure_makes_no_tie() -> None:
    # the reference holds 8 at 2.0 below its own choice: rounding does not turn that around
    reference, other = answer((7, {7: -0.2, 8: -2.2})), answer((8, {8: -1.0, 7: -1.01}))
    assert compare_answers(0, 16, reference, other, 0.125).verdict == "different"
    # neither is the other's token among its likeliest
    strange = answer((9, {9: -0.1, 4: -5.0}))
    found = compare_answers(0, 16, reference, strange, 0.125)
    assert found.verdict == "different"
    assert found.divergence is not None
    assert found.divergence.others == (None, None)


def test_what_follows_a_tie_counts_for_nothing() -> None:
    tie = [answer((7, {7: -1.0, 8: -1.01}), SURE), answer((8, {8: -1.0, 7: -1.01}), (9, {9: -0.1}))]
    found = compare_answers(0, 16, *tie, 0.125)
    assert (found.verdict, found.agreed) == ("tie", 0)
    assert found.mean_logprob_error is None


def test_an_answer_that_ends_early_is_different() -> None:
    found = compare_answers(0, 16, answer(SURE, SURE), answer(SURE), 0.125)
    assert (found.verdict, found.agreed, found.length, found.divergence) == (
        "different", 1, 2, None,
    )  # fmt: skip


def test_the_bound_is_that_of_the_coarser_dtype() -> None:
    assert tie_gap_of(["float32", "float32"]) == 0.001
    assert tie_gap_of(["float32", "bfloat16"]) == 0.125
    # what a server does not state is taken for bf16
    assert tie_gap_of(["float32", None]) == 0.125


def test_the_words_say_how_many_and_what_a_tie_is() -> None:
    same = compare_answers(0, 16, answer(SURE), answer(SURE), 0.1)
    tie = compare_answers(
        1, 16, answer((7, {7: -1.0, 8: -1.05})), answer((8, {8: -1.0, 7: -1.02})), 0.1
    )
    one = Comparison("a", "b", 0.1, (same, tie))
    assert one.agrees
    assert verdict_line(one) == (
        "a and b agree: of 2 prompts 1 token by token, 1 up to a tie (two logits closer than 0.1 "
        "in one, than 0.2 in the other), 0 different beyond ties"
    )
    (line,) = difference_lines(one)
    assert line.startswith("  prompt 1 (16 tokens), token 1: a tie: a took 7 (logprob -1.000")
    # half of the answers' tokens agree: 1 of 1 and 0 of 1
    assert one.agreed_share == 0.5
    quantized = static_info(mode="quantized")
    (cost,) = cost_lines(one, [paged_info(), quantized])
    assert "50.0 % of an answer stays the same" in cost
    assert cost_lines(one, [paged_info(), static_info()]) == []


BODY: dict[str, Any] = {
    "choices": [
        {
            "token_ids": [5],
            "logprobs": {
                "token_logprobs": [-0.1],
                "top_logprobs": [{"token_id:5": -0.1, "token_id:6": -3.0}],
            },
        }
    ]
}


def changed(**fields: object) -> dict[str, Any]:
    return {"choices": [{**BODY["choices"][0], **fields}]}


def test_an_answer_is_read_by_token_ids() -> None:
    found = read_answer(BODY)
    assert found.tokens == (5,)
    assert found.steps[0].gap == pytest.approx(2.9)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "no choice"),
        ({"choices": [5]}, "no choice"),
        (changed(token_ids=None), "token_ids"),
        (changed(token_ids=["5"]), "token_ids"),
        (changed(logprobs=None), "no logprobs"),
        (changed(logprobs={"token_logprobs": [], "top_logprobs": []}), "do not pair"),
        (changed(logprobs={"token_logprobs": [None], "top_logprobs": [{}]}), "no number"),
        (changed(logprobs={"token_logprobs": [-0.1], "top_logprobs": [None]}), "no objects"),
        (
            changed(logprobs={"token_logprobs": [-0.1], "top_logprobs": [{"the": -0.1}]}),
            "return_tokens_as_token_ids",
        ),
        (
            changed(logprobs={"token_logprobs": [float("nan")], "top_logprobs": [{}]}),
            "no number",
        ),
    ],
)
def test_an_answer_that_cannot_be_compared_says_why(body: dict[str, Any], words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        read_answer(body)


ASKED: dict[str, Any] = {
    "backends": "a=http://127.0.0.1:1,b=http://127.0.0.1:2",
    "model": None,
    "prompt_tokens": "16,64",
    "prompts": 2,
    "output_tokens": 8,
    "neighbours": 4,
    "seed": 3,
    "tie_gap": None,
    "timeout_s": 10.0,
    "api_key": None,
}


def test_prompts_are_seeded_distinct_and_of_alternating_lengths() -> None:
    settings = read_settings(**ASKED)
    alphabet = tuple(range(17, 117))
    prompts = make_prompts(settings, alphabet)
    assert [len(prompt) for prompt in prompts] == [16, 64, 16, 64]
    assert len(set(prompts)) == 4
    assert prompts == make_prompts(settings, alphabet)
    assert prompts != make_prompts(read_settings(**{**ASKED, "seed": 4}), alphabet)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backends": "a=http://127.0.0.1:1"}, "two servers or more"),
        ({"backends": "a=http://me:secret@host,b=http://h"}, "without credentials"),
        ({"prompt_tokens": "16,x"}, "numbers of tokens"),
        ({"prompt_tokens": "4"}, "from 8"),
        ({"prompt_tokens": "16,16"}, "each once"),
        ({"tie_gap": "nan"}, "--tie-gap"),
        ({"tie_gap": "-1"}, "--tie-gap"),
        ({"api_key": "two words"}, "not a valid key"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_settings(**{**ASKED, **changes})
