"""What is known inside a running level: pages as they are written, requests as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.load.phases import Progress
from harness.observe.backends import backend_kind
from harness.plan.search_types import Decision, SoFar
from harness.records import CellKey, Outcome, RequestRecord, Scrape
from harness.rundir import GzipJournal
from harness.search.scrape_tail import ScrapeTail
from harness.search.watch import LevelWatch, SequentialClosing
from harness.workload import Slo
from tests.support.fake_server import paged_info

CELL = CellKey("paged", "paged", 512, 128, 4.0)
#: TTFT 100 ms
LIMIT = Slo(ttft_s=0.1)
#: 128 blocks of 128 tokens, of which 127 usable; a prompt of 512 needs 4
INFO = paged_info(max_num_seqs=8)


def page(*, running: int, waiting: int, used_blocks: int = 0, preemptions: int = 0) -> str:
    return "\n".join(
        (
            f'vllm:num_requests_running{{engine="0"}} {running}.0',
            f'vllm:num_requests_waiting{{engine="0"}} {waiting}.0',
            f'vllm:kv_cache_usage_perc{{engine="0"}} {used_blocks / 127!r}',
            f'vllm:num_preemptions_total{{engine="0"}} {preemptions}.0',
            "",
        )
    )


class Pages:
    """A scraper's journal, and what reads it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "paged.jsonl.gz"
        self.path = path
        self._journal = GzipJournal(path)
        self.tail = ScrapeTail(path, backend_kind("vllm").sample_names)

    def add(self, t_s: float, text: str | None, error: str | None = None) -> None:
        self._journal.append(Scrape(t_s=t_s, took_s=0.01, status=200, text=text, error=error))


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    return Pages(tmp_path)


def record(
    sent_s: float | None, ttft_s: float = 0.05, outcome: Outcome = "ok", user: int = 0
) -> RequestRecord:
    first_us = round(ttft_s * 1e6)
    return RequestRecord(
        worker="local",
        seq=1,
        cell=CELL,
        user=user,
        outcome=outcome,
        t_intended_s=sent_s or 0.0,
        t_sent_s=sent_s,
        t_end_s=(sent_s or 0.0) + ttft_s + 0.01,
        token_us=(first_us, 10_000) if outcome == "ok" else (),
        output_tokens=2 if outcome == "ok" else None,
        asked_prompt_tokens=512,
        asked_output_tokens=128,
        prompt_hash="h",
    )


def test_the_tail_gives_each_page_once_and_waits_for_a_torn_one(pages: Pages) -> None:
    assert pages.tail.read() == []
    pages.add(1.0, page(running=1, waiting=0))
    pages.add(2.0, page(running=2, waiting=0))
    assert [t_s for t_s, _ in pages.tail.read()] == [1.0, 2.0]
    assert pages.tail.read() == []
    before = pages.path.stat().st_size
    pages.add(3.0, page(running=3, waiting=0))
    whole = pages.path.read_bytes()
    # the scraper has written half of the line so far
    pages.path.write_bytes(whole[: before + 20])
    assert pages.tail.read() == []
    pages.path.write_bytes(whole)
    ((t_s, found),) = pages.tail.read()
    assert (t_s, found["vllm:num_requests_running"][0].value) == (3.0, 3.0)


def test_failed_scrapes_and_what_is_no_page_are_passed_over(pages: Pages) -> None:
    pages.add(1.0, None, "no answer within 0.8 s")
    pages.add(2.0, "<html>")
    pages.add(3.0, page(running=1, waiting=0))
    assert [t_s for t_s, _ in pages.tail.read()] == [3.0]
    pages.add(4.0, page(running=1, waiting=0))
    pages.tail.skip()
    assert pages.tail.read() == []


def test_samples_that_keep_requests_out_are_counted_in_the_window_only(pages: Pages) -> None:
    watch = LevelWatch(INFO, CELL, LIMIT, pages.tail)
    # before the window
    pages.add(9.5, page(running=4, waiting=3, used_blocks=127, preemptions=1))
    # nobody waits; waits for memory (2 of 127 blocks free, 4 needed); waits for prefill;
    # waits for one of 8 seats
    pages.add(10.5, page(running=4, waiting=0, used_blocks=20, preemptions=5))
    pages.add(11.5, page(running=4, waiting=1, used_blocks=125, preemptions=7))
    pages.add(12.5, page(running=4, waiting=1, used_blocks=20, preemptions=7))
    pages.add(13.5, page(running=8, waiting=1, used_blocks=20, preemptions=7))
    found = watch.so_far(open_s=10.0, now_s=14.0)
    assert (found.samples, found.kept_out, found.preemptions) == (4, 2, 2.0)
    assert found.elapsed_s == 4.0
    # read once
    assert watch.so_far(10.0, 15.0).samples == 4


def test_requests_sent_in_the_window_are_counted(pages: Pages) -> None:
    watch = LevelWatch(INFO, CELL, LIMIT, pages.tail)
    watch.add(record(9.0), None)
    watch.add(record(9.9), 10.0)
    watch.add(record(10.0, ttft_s=0.05), 10.0)
    watch.add(record(10.5, ttft_s=0.2), 10.0)
    watch.add(record(10.6, outcome="timeout"), 10.0)
    watch.add(record(10.7, outcome="cancelled"), 10.0)
    watch.add(record(None, outcome="connect"), 10.0)
    found = watch.so_far(10.0, 12.0)
    # 0.2 s is over the limit of 0.1 s
    assert (found.ok, found.failed, found.met) == (2, 1, 1)


def test_without_limits_or_metrics_nothing_is_made_up() -> None:
    watch = LevelWatch(INFO, CELL, Slo(), None)
    watch.add(record(10.5), 10.0)
    found = watch.so_far(10.0, 12.0)
    assert found == SoFar(2.0, 1, 0, None, 0, 0, 0.0, in_flight_rising=False)


def progress(now_s: float, open_s: float | None = 2.0) -> Progress:
    return Progress(start_s=1.0, open_s=open_s, now_s=now_s, sent=0)


def test_a_level_ends_when_it_is_decided() -> None:
    asked: list[SoFar] = []
    answers: dict[float, Decision] = {0.5: "go_on", 1.5: "go_on", 2.5: "enough"}

    def decide(so_far: SoFar) -> Decision:
        asked.append(so_far)
        return answers[so_far.elapsed_s]

    closing = SequentialClosing(LevelWatch(INFO, CELL, Slo(), None), decide, 60.0)
    assert closing.reason(progress(1.5, open_s=None)) is None
    assert asked == []
    assert closing.reason(progress(2.5)) is None
    # looked at seldom: every request that ends asks
    assert closing.reason(progress(2.6)) is None
    assert len(asked) == 1
    assert closing.reason(progress(3.5)) is None
    assert closing.reason(progress(4.5)) == "complete"


@pytest.mark.parametrize(
    ("decision", "reason"), [("collapse", "collapse"), ("limit", "time_limit"), ("go_on", None)]
)
def test_how_a_level_ends(decision: Decision, reason: str | None) -> None:
    watch = LevelWatch(INFO, CELL, Slo(), None)
    assert SequentialClosing(watch, lambda _: decision, 60.0).reason(progress(3.0)) == reason


def test_a_warm_up_that_does_not_end_is_over_with_the_level() -> None:
    watch = LevelWatch(INFO, CELL, Slo(), None)
    closing = SequentialClosing(watch, lambda _: "go_on", 60.0)
    assert closing.reason(progress(60.9, open_s=None)) is None
    assert closing.reason(progress(61.0, open_s=None)) == "time_limit"


def test_a_level_whose_every_request_fails_need_not_warm_up() -> None:
    """Of 4 users 2 have had ten requests fail; the others' first ones still run."""
    watch = LevelWatch(INFO, CELL, Slo(), None)
    closing = SequentialClosing(watch, lambda _: "go_on", 60.0)
    for _ in range(10):
        watch.add(record(1.0, outcome="rejected"), None)
    # one user that fails again and again is no level
    assert closing.reason(progress(5.0, open_s=None)) is None
    watch.add(record(1.0, outcome="rejected", user=1), None)
    assert closing.reason(progress(5.0, open_s=None)) == "collapse"
    watch.add(record(1.0, user=2), None)
    assert closing.reason(progress(5.0, open_s=None)) is None


def test_whether_a_server_is_gone_is_found_out_before_its_level_is_called_bad() -> None:
    watch = LevelWatch(INFO, CELL, Slo(), None)
    closing = SequentialClosing(watch, lambda _: "go_on", 60.0)
    for user in range(12):
        watch.add(record(None, outcome="connect", user=user), None)
    # from 1 s on: after five it is given up, if its health page fails, too
    assert closing.reason(progress(8.9, open_s=None)) is None
    assert closing.reason(progress(9.0, open_s=None)) == "collapse"


def test_a_level_ends_with_the_time_of_the_whole_search() -> None:
    left = [5.0]
    watch = LevelWatch(INFO, CELL, Slo(), None)
    closing = SequentialClosing(watch, lambda _: "go_on", 60.0, lambda: left[0])
    assert closing.reason(progress(5.0)) is None
    left[0] = 0.0
    assert closing.reason(progress(6.0)) == "time_limit"
    assert closing.reason(progress(6.0, open_s=None)) == "time_limit"
