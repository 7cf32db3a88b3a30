"""What a workload asks for, in words."""

from __future__ import annotations

import msgspec

from harness.report.asked import ask_lines, lengths_text
from harness.workload import Asks, Conversations, LengthMix, SharedPrefix, Workload
from tests.support.run_builder import manifest


def work(asks: Asks | None) -> Workload:
    return msgspec.structs.replace(manifest().workload, asks=asks)


def mix(**changes: object) -> LengthMix:
    facts: dict[str, object] = {
        "source": "azure.csv",
        "sha256": "0123456789abcdef",
        "context_tokens": 2048,
        "over_length": "scale",
        "factor": 0.14567,
        "requests": 2000,
        "shortened": 1990,
        "skipped": 3,
        "mean_tokens": 201.4,
    }
    return LengthMix(**{**facts, **changes})  # type: ignore[arg-type]


def test_one_length_needs_no_words() -> None:
    assert lengths_text(work(None)) == "512 prompt + 128 output tokens"
    assert ask_lines(work(None)) == []


def test_a_mix() -> None:
    assert lengths_text(work(mix())) == "512 prompt + 128 output tokens at the median (azure.csv)"
    (line,) = ask_lines(work(mix()))
    start = "Lengths: 2,000 requests of azure.csv (SHA-256 0123456789ab), 201 tokens on average"
    assert line.startswith(start)
    assert "at most 2,048 (all lengths x 0.1457)" in line
    (line,) = ask_lines(work(mix(over_length="clip", sha256=None)))
    assert "(1,990 longer requests cut)" in line
    assert "SHA" not in line
    (line,) = ask_lines(work(mix(over_length="skip")))
    assert "(3 longer requests left out)" in line


def test_a_shared_prefix() -> None:
    asked = work(SharedPrefix(prefix_tokens=500, reuse=(0.0, 0.9)))
    assert lengths_text(asked).endswith("of which 500 are a system prompt")
    (line,) = ask_lines(asked)
    assert "500 tokens of a system prompt and 12 of the request's own" in line
    assert "(reuse 0, 0.9)" in line


def test_conversations() -> None:
    asked = work(Conversations(system_tokens=100, turns=5, user_tokens=20, think_s=0.5))
    assert lengths_text(asked).endswith("in the middle of 5 turns")
    (line,) = ask_lines(asked)
    assert "5 turns of 20 tokens of the user and 128 of the server" in line
    assert "500 ms on average" in line
