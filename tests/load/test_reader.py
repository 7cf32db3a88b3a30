"""Answers are read in order, in slices, and all of them when asked."""

from __future__ import annotations

import gevent

from harness.load.exchange import Ended, Exchange
from harness.load.reader import AnswerReader
from harness.load.timeline import Failure
from harness.records import RequestRecord
from tests.load.client_kit import make_ask


class TickingClock:
    """A millisecond passes with every look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def wall(self) -> float:
        return self.now_s


def ended(seq: int) -> Ended:
    exchange = Exchange(failure=Failure("connect", "nobody"))
    return Ended(make_ask(seq=seq), exchange, 1.0, exact=True, secret=None)


class Desk:
    def __init__(self) -> None:
        self.read: list[tuple[str, int]] = []
        self.reader: AnswerReader[str] = AnswerReader(self.keep, TickingClock())

    def keep(self, beside: str, record: RequestRecord) -> None:
        self.read.append((beside, record.seq))

    def put(self, count: int) -> None:
        for seq in range(len(self.read), len(self.read) + count):
            self.reader.put(f"user {seq}", ended(seq))


def test_nothing_is_read_before_the_loop_turns_and_all_is_read_in_order() -> None:
    desk = Desk()
    desk.put(5)
    assert desk.read == []
    with gevent.Timeout(10):
        while len(desk.read) < 5:
            gevent.sleep(0.001)
    assert desk.read == [(f"user {seq}", seq) for seq in range(5)]


def test_between_slices_others_have_their_turn() -> None:
    desk = Desk()
    desk.put(6)
    seen: list[int] = []
    with gevent.Timeout(10):
        while len(desk.read) < 6:
            gevent.sleep(0)
            seen.append(len(desk.read))
    # begun at 1 ms, so over at 3 ms: the looks at 2 and 3 ms let two answers in
    assert {2, 4, 6} <= set(seen)
    assert not {1, 3, 5} & set(seen)


def test_drain_reads_what_is_left_at_once() -> None:
    desk = Desk()
    desk.put(4)
    desk.reader.drain()
    assert [seq for _, seq in desk.read] == [0, 1, 2, 3]
    # and the reader goes on with what comes afterwards
    desk.put(1)
    with gevent.Timeout(10):
        while len(desk.read) < 5:
            gevent.sleep(0.001)
    assert desk.read[-1] == ("user 4", 4)
