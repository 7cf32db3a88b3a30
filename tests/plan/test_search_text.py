"""The words of a search, and the flags that it gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.manifest import BackendInfo
from harness.plan.search_flags import advice, found_flags, in_effect
from harness.plan.search_reasons import reasons_of
from harness.plan.search_text import found_line, level_line, next_line
from harness.plan.search_types import Found, LevelVerdict
from harness.records import CellKey
from tests.plan.test_search_events import BAD, CELL, FOUND, GOOD

SLO = LevelVerdict(18.0, "slo", "good", 0.992, 0.97, 0.998, 0.95, 120, None)


def info(kind: str, mode: str, max_num_seqs: int | None = 128) -> BackendInfo:
    return BackendInfo(
        name="a", url="http://127.0.0.1:1", kind=kind, mode=mode, model="m",
        max_num_seqs=max_num_seqs,
    )  # fmt: skip


def test_a_level_in_one_line() -> None:
    assert level_line(CELL, (GOOD, SLO), "closed") == (
        "a 512+64 c18: good, requests kept out in 0 % (0-8 %) of 44 samples; "
        "good, 99 % (97-100 %) of 120 requests meet the SLO"
    )
    assert level_line(CELL, (BAD,), "closed") == (
        "a 512+64 c18: bad, requests kept out in 90 % (70-97 %) of 20 samples (KV memory)"
    )
    # an open loop's level that fills up has no share of samples
    filling = replace(BAD, low=None, high=None, share=1.0, n=272, cause="compute")
    assert level_line(CELL, (filling,), "open") == (
        "a 512+64 18/s: bad, more requests come in than end (compute)"
    )
    assert level_line(CELL, (), "closed") == "a 512+64 c18: not judged"
    unknown = replace(GOOD, state="undecided", share=None, low=None, high=None)
    assert level_line(CELL, (unknown,), "closed") == "a 512+64 c18: undecided"


def test_why_the_next_level_is_the_next() -> None:
    cell = CellKey("a", "paged", 512, 64, 19.0)
    assert next_line(cell, (), 18, "closed") == "next a 512+64 c19: predicted 18"
    assert next_line(cell, (GOOD, SLO), 18, "closed") == (
        "next a 512+64 c19: predicted 18; capacity good up to 18; SLO good up to 18"
    )
    assert next_line(cell, (GOOD, BAD), None, "closed") == (
        "next a 512+64 c19: capacity good up to 18, bad from 19"
    )
    assert next_line(cell, (), None, "open") == "next a 512+64 19/s"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "a holds 18 requests at once (95 % interval 17-19), limited by KV memory"),
        (
            {"status": "not_reached", "first_bad": None, "high": None, "cause": None},
            "a holds 18 requests at once (95 % interval 17 or more); no level up to there is bad",
        ),
        (
            {"status": "budget", "low": None, "high": None, "cause": None},
            "a holds 18 requests at once; the search was cut short (19 is bad)",
        ),
        (
            {"status": "undecided", "low": None},
            "a holds 18 requests at once (95 % interval 19 or fewer); not sure (19 is bad), "
            "limited by KV memory",
        ),
        (
            {"status": "below_first", "last_good": None, "first_bad": 1.0},
            "a holds not even 1 request at once",
        ),
        (
            {"status": "undecided", "last_good": None, "first_bad": None},
            "a holds an unknown number of requests at once: no level is sure to be good",
        ),
        (
            {"goal": "slo", "low": None, "high": None, "cause": "compute"},
            "a meets the SLO up to 18 requests at once, limited by compute",
        ),
    ],
)
def test_what_was_found_in_one_line(changes: dict[str, object], words: str) -> None:
    found: Found = replace(FOUND, **changes)  # type: ignore[arg-type]
    assert found_line(found, "closed") == words


def test_flags_name_what_the_server_can_be_told() -> None:
    assert found_flags(info("vllm", "paged"), FOUND) == ("--max-num-seqs", "18")
    assert found_flags(info("contiguous", "static"), FOUND) == ("--max-num-seqs", "18")
    # a static batch may not be larger than what is admitted
    assert found_flags(info("contiguous", "static/batch"), FOUND) == (
        *("--max-num-seqs", "18"),
        *("--batch-size", "18"),
    )
    assert found_flags(info("openai", "default"), FOUND) == ()
    for changes in ({"goal": "slo"}, {"status": "not_reached"}, {"last_good": None}):
        assert found_flags(info("vllm", "paged"), replace(FOUND, **changes)) == ()  # type: ignore[arg-type]


def test_flags_that_the_server_has_already() -> None:
    assert in_effect(info("vllm", "paged", 18), FOUND)
    assert not in_effect(info("vllm", "paged", 128), FOUND)
    assert not in_effect(info("vllm", "paged", None), FOUND)
    # TGI states the size of a batch, which is another limit
    assert not in_effect(info("tgi", "default", 18), FOUND)
    assert not in_effect(info("vllm", "paged", 18), replace(FOUND, last_good=None))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("vllm", "start it with --max-num-seqs 18"),
        ("sglang", "start it with --max-running-requests 18"),
        (
            "tgi",
            "start it with --max-concurrent-requests 18 (what comes beyond is refused, not queued)",
        ),
        (
            "llamacpp",
            "start it with --parallel 18 (each slot has its part of --ctx-size)",
        ),
        (
            "openai",
            "let in at most 18 requests at once: set your server's own limit, or a proxy's before "
            "it",
        ),
        (
            "of tomorrow",
            "let in at most 18 requests at once: set your server's own limit, or a proxy's before "
            "it",
        ),
    ],
)
def test_every_server_is_told_what_to_limit(kind: str, words: str) -> None:
    assert advice(info(kind, "default"), FOUND) == f"a: {words}"
    rate = "let in at most 18 requests/s: limit the rate in its clients or at a proxy before it"
    assert advice(info(kind, "default"), FOUND, "open") == f"a: {rate}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"status": "undecided"},
            "until a longer search says more, let in at most 18 requests at once",
        ),
        ({"status": "budget", "last_good": None}, "no limit to set yet: no number of requests at "
            "once is sure to be held"),
        ({"status": "not_reached", "first_bad": None}, "no limit is needed up to 18 requests at "
            "once"),
        ({"status": "below_first", "last_good": None}, "no limit helps, the least is too much: it "
            "needs less load per request or more KV memory"),
        ({"status": "below_first", "last_good": None, "cause": "compute"}, "no limit helps, the "
            "least is too much: it needs less load per request"),
        ({"goal": "slo"}, "for the SLO let in at most 18 requests at once, limited in its clients "
            "or at a proxy before it: a server's own limit makes the others wait, and they miss "
            "it too"),
    ],
)  # fmt: skip
def test_what_to_do_when_no_flag_is_to_be_pasted(changes: dict[str, object], words: str) -> None:
    found: Found = replace(FOUND, **changes)  # type: ignore[arg-type]
    assert advice(info("vllm", "paged"), found) == f"a: {words}"


def test_what_to_do_for_an_slo() -> None:
    slo = replace(FOUND, goal="slo")
    assert advice(info("vllm", "paged"), slo, "open") == (
        "a: for the SLO let in at most 18 requests/s: limit the rate in its clients or at a proxy "
        "before it"
    )
    assert advice(info("vllm", "paged"), replace(slo, status="budget")) == ""


def test_a_server_that_has_its_limit_already() -> None:
    assert advice(info("vllm", "paged", 18), FOUND) == "a: it runs with --max-num-seqs 18 already"


def test_both_sides_of_a_cause() -> None:
    found = reasons_of(FOUND, "closed")
    assert found is not None
    assert found.head == "a, capacity, 19 at once: KV memory"
    assert found.lines == ("for: full", "against: but")
    plain = reasons_of(replace(FOUND, against=(), first_bad=None), "closed")
    assert plain is not None
    assert plain.head == "a, capacity: KV memory"
    assert plain.lines == ("for: full", "against: (nothing speaks against it)")
    rate = reasons_of(replace(FOUND, goal="slo"), "open")
    assert rate is not None
    assert rate.head == "a, SLO, 19 requests/s: KV memory"


def test_nothing_is_said_against_a_cause_that_is_none() -> None:
    """Of the client and of an unknown cause it is not looked up what speaks against it."""
    unknown = reasons_of(replace(FOUND, cause="unknown", against=()), "closed")
    assert unknown is not None
    assert unknown.lines == ("because: full",)
    assert reasons_of(replace(FOUND, cause=None), "closed") is None
    assert reasons_of(replace(FOUND, evidence=()), "closed") is None
