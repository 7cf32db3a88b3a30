"""Distributions: what is read, what is drawn, what is refused."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import OptionError
from servers.simulated.distributions import parse_duration, parse_sizes
from servers.simulated.faults import KINDS, FaultPlan, parse_faults


def draws(text: str, n: int = 4001, seed: int = 3) -> list[float]:
    sample = parse_duration(text, "--ttft").sampler(random.Random(seed))
    return [sample() for _ in range(n)]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.05", 0.05), ("20ms", 0.02), ("300us", 0.0003), ("2s", 2.0), (".5", 0.5), ("0", 0.0)],
)
def test_a_constant_with_or_without_a_unit(text: str, seconds: float) -> None:
    duration = parse_duration(text, "--ttft")
    assert duration.constant_s == pytest.approx(seconds)
    assert set(draws(text, 3)) == {duration.constant_s}


@pytest.mark.parametrize(
    ("text", "middle", "spread"),
    [
        # the median and, for what has one, half the range of the middle half:
        # uniform: quarter of the width; normal: 0.6745 sd; exp: mean x ln(3) / 2
        ("uniform:10ms,30ms", 0.020, 0.005),
        ("normal:50ms,4ms", 0.050, 0.6745 * 0.004),
        ("exp:20ms", 0.020 * 0.6931, 0.020 * 1.0986 / 2),
        # lognormal: median x sinh(0.6745 sigma)
        ("lognormal:80ms,0.3", 0.080, 0.080 * 0.2037),
    ],
)
def test_draws_have_the_shape_asked_for(text: str, middle: float, spread: float) -> None:
    found = draws(text)
    low, median, high = statistics.quantiles(found, n=4)
    # 4,001 draws: the standard error of a quartile is below 3 % of these widths
    assert median == pytest.approx(middle, abs=0.15 * spread)
    assert (high - low) / 2 == pytest.approx(spread, rel=0.15)
    assert min(found) >= 0


def test_a_normal_time_is_never_negative() -> None:
    assert min(draws("normal:1ms,50ms")) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "1e9",
        "3601",
        "20 ms",
        "normal:1",
        "uniform:2,1",
        "exp:0",
        "lognormal:0,1",
        "lognormal:1,2s",
        "zipf:1",
        "nan",
        "inf",
        "normal:1,",
        "0.05,0.06",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--ttft"):
        parse_duration(text, "--ttft")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "choice:", "uniform:4,1", "uniform:1", "9999"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--tokens-per-chunk"):
        parse_sizes(text, "--tokens-per-chunk")


@given(st.integers(1, 500), st.sampled_from(["1", "3", "choice:1,3,4,2", "uniform:1,4"]))
def test_chunks_hold_all_tokens_and_none_is_empty(tokens: int, text: str) -> None:
    sizes = parse_sizes(text, "--x").split(tokens, random.Random(1))
    assert sum(sizes) == tokens
    assert min(sizes) >= 1


def test_choices_come_in_turn() -> None:
    assert parse_sizes("choice:1,3,4,2", "--x").split(13, None) == [1, 3, 4, 2, 1, 2]


def test_faults_follow_from_seed_and_number_alone() -> None:
    plan = parse_faults(["stall=0.2", "429=0.1"], seed=7)
    first = [plan.of(n) for n in range(500)]
    assert [plan.of(n) for n in reversed(range(500))] == first[::-1]
    assert [parse_faults(["stall=0.2", "429=0.1"], seed=8).of(n) for n in range(500)] != first
    kinds = [fault.kind if fault else None for fault in first]
    # binomial: 500 x 0.2 = 100 +- 4 x 9, 500 x 0.1 = 50 +- 4 x 7
    assert 64 <= kinds.count("stall") <= 136
    assert 22 <= kinds.count("429") <= 78


@given(st.integers(0, 10_000), st.integers(2, 300))
def test_a_fault_in_the_middle_strikes_in_the_middle(number: int, chunks: int) -> None:
    fault = FaultPlan(1, (("reset", 1.0),)).of(number)
    assert fault is not None
    assert 1 <= fault.after_chunks(chunks) < chunks


def test_every_kind_can_be_asked_for_alone() -> None:
    for kind in KINDS:
        fault = parse_faults([f"{kind}=1"], seed=0).of(5)
        assert fault is not None
        assert fault.kind == kind
    assert parse_faults([], seed=0).of(5) is None


@pytest.mark.parametrize(
    "values", [["x=1"], ["reset"], ["reset=2"], ["reset=-1"], ["reset=0.6", "stall=0.5"]]
)
def test_faults_that_cannot_be_are_refused(values: list[str]) -> None:
    with pytest.raises(OptionError, match="--fault"):
        parse_faults(values, 0)


def test_a_kind_of_fault_is_given_once() -> None:
    with pytest.raises(OptionError, match="each kind once"):
        parse_faults(["reset=0.1", "reset=0.1"], 0)
