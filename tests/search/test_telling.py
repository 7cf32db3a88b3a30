"""The lines that a search logs at its end."""

from __future__ import annotations

import logging

import pytest

from harness.plan.search_types import Found
from harness.records import Loop, RunEvent
from harness.search.judge import Judge
from harness.search.policy import KneePolicy
from harness.search.telling import SearchTelling
from tests.support.fake_server import paged_info
from tests.support.virtual_time import VirtualTime

HELD = Found(
    "paged", "capacity", "found", 25.0, 26.0, 25.0, 25.0, "kv_memory",
    ("requests wait for KV memory in 9 of 17 samples", "the pool is up to 98 % full"),
)  # fmt: skip
MET = Found(
    "paged", "slo", "undecided", 11.0, 25.0, 11.0, 24.0, "compute",
    ("85.6 % of 201 requests meet the SLO",), ("a token takes no longer than at a lower level",),
)  # fmt: skip


def told(caplog: pytest.LogCaptureFixture, kind: str, loop: Loop, *found: Found) -> list[str]:
    events: list[RunEvent] = []
    infos = {"paged": paged_info(kind=kind)}
    unused: tuple[KneePolicy, Judge] = (None, None)  # type: ignore[assignment]
    telling = SearchTelling(*unused, infos, {}, loop, VirtualTime(), events.append)
    with caplog.at_level(logging.INFO, logger="harness.search.telling"):
        telling.say_found(found)
        telling.say_found(found)
    assert [event.kind for event in events] == ["search_found"] * len(found)
    return caplog.messages


def test_the_end_says_why_and_what_speaks_against_it(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "vllm", "closed", HELD, MET) == [
        "paged holds 25 requests at once (95 % interval 25-25), limited by KV memory",
        "  for: requests wait for KV memory in 9 of 17 samples",
        "  for: the pool is up to 98 % full",
        "  against: (nothing speaks against it)",
        "paged: start it with --max-num-seqs 25",
        "paged meets the SLO up to 11 requests at once (95 % interval 11-24); not sure "
        "(25 is bad), limited by compute",
        "  for: 85.6 % of 201 requests meet the SLO",
        "  against: a token takes no longer than at a lower level",
    ]


def test_a_server_of_no_known_kind_and_a_rate_end_with_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told(caplog, "openai", "closed", HELD)[-1] == (
        "paged: let in at most 25 requests at once: set your server's own limit, or a proxy's "
        "before it"
    )
    caplog.clear()
    assert told(caplog, "vllm", "open", HELD)[-1] == (
        "paged: let in at most 25 requests/s: limit the rate in its clients or at a proxy before it"
    )
