"""Errors from records and truth, by hand."""

from __future__ import annotations

import msgspec
import pytest

from harness.calibrate.result import Errors, LevelResult, ceiling
from harness.calibrate.settings import read_settings
from harness.calibrate.text import reasons, verdict_lines
from harness.calibrate.truth import ClientReport, RequestTruth, compare, read_truth
from harness.errors import OptionError
from harness.records import CellKey, RequestRecord
from tests.calibrate.support import calibration, level
from tests.support.fake_records import failure, record

CELL = CellKey("simulated", "paced", 32, 3, 1.0)
#: open at 9 s, closed at 19 s: ten seconds
CLIENT = ClientReport(open_s=9.0, close_s=19.0, cpu_ratio=0.5, lag_max_s=0.01)


def true(*token_s: float, prompt: str = "a", **changes: object) -> dict[str, RequestTruth]:
    facts = {"prompt_hash": prompt, "t_received_s": 10.002, "token_s": token_s, **changes}
    return {prompt: msgspec.convert(facts, RequestTruth)}


def compared(truth: dict[str, RequestTruth], *records: RequestRecord) -> LevelResult:
    return compare(1, 30.0, records, truth, CLIENT)


#: sent at 10 s, tokens at 10.5, 10.6 and 10.7 s by the client
ONE = record(CELL, prompt_hash="a")


def test_errors_are_arrival_less_writing_and_gap_less_gap() -> None:
    # written at 10.4998, 10.6 and 10.6995: the first token seems 0.2 ms late; the gaps are
    # 0.1 and 0.1 s here, 0.1002 and 0.0995 s there: 0.2 and 0.5 ms off
    found = compared(true(10.4998, 10.6, 10.6995), ONE)
    assert found.ttft_error.n == 1
    assert found.ttft_error.max_s == pytest.approx(0.0002)
    assert found.itl_error.n == 2
    assert found.itl_error.max_s == pytest.approx(0.0005)
    # p50 of two lies in their middle, p99 0.99 of the way from the one to the other
    assert found.itl_error.p50_s == pytest.approx(0.00035)
    assert found.itl_error.p99_s == pytest.approx(0.0002 + 0.99 * 0.0003)
    assert found.to_server.max_s == pytest.approx(0.002)
    # three tokens in ten seconds
    assert found.tokens_per_s == pytest.approx(0.3)
    assert (found.requests, found.failed, found.lost, found.invented) == (1, 0, 0, 0)
    assert found.within


def test_early_is_as_wrong_as_late() -> None:
    found = compared(true(10.5012, 10.6012, 10.7012), ONE)
    assert found.ttft_error.max_s == pytest.approx(0.0012)
    assert found.itl_error.max_s == pytest.approx(0.0)
    assert not found.within


def test_tokens_lost_and_invented_are_counted_and_no_error() -> None:
    lost = compared(true(10.5, 10.6, 10.65, 10.7), ONE)
    invented = compared(true(10.5, 10.7), ONE)
    assert (lost.lost, lost.invented) == (1, 0)
    assert (invented.lost, invented.invented) == (0, 1)
    assert lost.itl_error == invented.itl_error == Errors(n=0)
    assert not lost.within and not invented.within
    assert reasons(lost) == ["1 tokens lost, 0 invented."]


def test_several_tokens_in_one_chunk_are_counted() -> None:
    burst = record(CELL, prompt_hash="a", token_n=(1, 4, 1), output_tokens=6)
    assert compared(true(10.5, 10.6, 10.7, tokens=(1, 4, 1)), burst).lost == 0
    assert compared(true(10.5, 10.6, 10.7, tokens=(1, 5, 1)), burst).lost == 1


def test_what_failed_or_is_unknown_to_the_server_is_a_failure() -> None:
    broken = failure(CELL, 1, prompt_hash="b")
    stranger = record(CELL, 2, prompt_hash="c")
    found = compared(true(10.5, 10.6, 10.7), ONE, broken, stranger)
    assert (found.requests, found.failed) == (3, 2)
    assert not found.within
    assert reasons(found) == ["2 of 3 requests failed."]


def test_only_requests_sent_in_the_window_count_but_all_tokens_in_it_are_rate() -> None:
    # sent at 8.9 s, before it opens: its tokens at 9.4, 9.5 and 9.6 s are in it all the same
    early = record(CELL, 1, prompt_hash="b", t_sent_s=8.9, t_intended_s=8.9)
    found = compared({**true(10.5, 10.6, 10.7), **true(1.0, prompt="b")}, ONE, early)
    assert found.requests == 1
    assert found.tokens_per_s == pytest.approx(0.6)


def test_shared_reads_forbid_it_however_small_the_errors() -> None:
    # one of three events is an upper bound
    shared = record(CELL, prompt_hash="a", coalesced=(1,))
    found = compared(true(10.5, 10.6, 10.7), shared)
    assert found.coalesced_share == pytest.approx(1 / 3)
    assert not found.within
    assert reasons(found) == ["33.3 % of the token events shared a read."]


def test_the_servers_own_lateness_is_told_beside_the_clients() -> None:
    found = compared(true(10.5, 10.6, 10.7, t_due_s=(10.45, 10.6, 10.7)), ONE)
    assert found.server_late.max_s == pytest.approx(0.05)
    assert found.within


def test_nothing_at_all_is_absent_and_never_zero() -> None:
    found = compared({})
    assert found.ttft_error == Errors(n=0)
    assert found.coalesced_share is None
    assert not found.within


def test_truth_is_read_line_by_line_whatever_else_it_states() -> None:
    line = b'{"number":3,"prompt_hash":"a","t_received_s":1.5,"token_s":[2.0],"fault":null}\n'
    assert read_truth(line + b"\n")["a"].token_s == (2.0,)
    with pytest.raises(msgspec.MsgspecError):
        read_truth(b"<html>")


def test_the_ceiling_is_the_highest_rate_that_was_right() -> None:
    levels = [level(100, 5_000.0), level(500, 25_000.0), level(1000, 49_000.0, p99_s=0.0011)]
    assert ceiling(levels) == 25_000.0
    assert ceiling(levels[2:]) is None
    # one level that something else disturbed takes nothing from the ones above it
    assert ceiling([level(100, 5_000.0, p99_s=0.5), *levels[1:]]) == 25_000.0


def test_the_verdict_says_whether_more_was_tried() -> None:
    right, wrong = level(100, 5_000.0), level(500, 25_000.0, p99_s=0.02)
    assert verdict_lines(calibration(right, wrong)) == [
        "Up to 5,000 tokens/s in one process this client's p99 errors stay within 1 ms."
    ]
    assert verdict_lines(calibration(right))[0].endswith("; more was not tried.")
    assert verdict_lines(calibration(wrong))[0].startswith("At none of these levels")
    assert "Interrupted" in verdict_lines(calibration(right, complete=False))[-1]


def test_settings_have_defaults_for_long_and_quick() -> None:
    usual = read_settings(None, "50", None, None, quick=False)
    assert (usual.streams, usual.seconds, usual.itl_s) == ((100, 500, 1000, 2000), 10.0, 0.02)
    # 0.05 + 63 x 0.02 = 1.31 s for 64 tokens
    assert usual.request_s == pytest.approx(1.31)
    assert usual.asked_tokens_per_s(1000) == pytest.approx(48_854.96)
    quick = read_settings(None, "50", None, None, quick=True)
    assert (quick.streams, quick.seconds) == ((100, 500), 3.0)
    own = read_settings("7", "20", "1.5", 1, quick=True)
    assert (own.streams, own.rate, own.seconds, own.core) == ((7,), 20.0, 1.5, 1)


@pytest.mark.parametrize(
    ("streams", "rate", "length", "words"),
    [
        ("500,100", "50", None, "--streams: '500,100' is not valid; expected rising whole"),
        ("many", "50", None, "--streams: 'many'"),
        (None, "0", None, "--rate: '0' is not valid; expected tokens/s of a stream"),
        (None, "5000", None, "--rate: '5000'"),
        (None, "fast", None, "--rate: 'fast'"),
        (None, "50", "0", "--seconds: '0'"),
        (None, "50", "601", "--seconds: '601' is not valid; expected seconds up to 600"),
    ],
)
def test_bad_input_is_one_clear_line(
    streams: str | None, rate: str, length: str | None, words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read_settings(streams, rate, length, None, quick=False)
    assert str(caught.value).startswith(words)
