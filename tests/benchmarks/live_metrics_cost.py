"""What do live metrics cost the load generator? CPU per token with and without, as a ratio.

::

    python -m tests.benchmarks.live_metrics_cost [--requests 2000] [--rounds 7]

One round frames, parses, times and writes down the answers of ``--requests`` requests, as
the client does, from bytes in memory: without a socket and its system calls, so that the
share of the live metrics comes out larger than it is. The next round does the same and
feeds the live metrics, with the server process running and a snapshot as often as at
50,000 tokens per second. Rounds take turns; the ratio compares the best of each, since what
else runs on the machine only ever makes a round dearer. CPU time is this process's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from harness.live import feed as live
from harness.live.feed import LiveFeed
from harness.load.exchange import Ask, Ended, Exchange
from harness.load.reads import NO_STAMP
from harness.records import CellKey, RequestRecord, RunEvent, wire_bytes
from harness.workload import Slo
from tests.live.support import facts
from tests.support.scripted_server import DONE, sse, text_chunk

OUTPUT_TOKENS = 128
#: the load at which the cost must be negligible, and the requests between two snapshots then
RATE_TPS = 50_000
REQUESTS_PER_SNAPSHOT = int(RATE_TPS / OUTPUT_TOKENS * live.INTERVAL_S)
#: levels that a run has behind it: their counts are in every snapshot
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)
CELL = CellKey("paged", "paged", 512, OUTPUT_TOKENS, 128.0)


@dataclass(frozen=True)
class Cost:
    """CPU seconds per token, one entry per round."""

    without_s: tuple[float, ...]
    with_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How much dearer a token is with live metrics, best rounds compared."""
        return min(self.with_s) / min(self.without_s)

    @property
    def core_share(self) -> float:
        """What live metrics take of a core at the rate above."""
        return (min(self.with_s) - min(self.without_s)) * RATE_TPS

    def table(self) -> str:
        """For people."""
        return (
            "CPU per token   off        on         ratio   of a core at "
            f"{RATE_TPS:,} tokens/s\n"
            f"                {min(self.without_s) * 1e6:.3f} us   {min(self.with_s) * 1e6:.3f} us"
            f"   {self.ratio:.3f}   {self.core_share * 100:.2f} %"
        )


def measure(requests: int, rounds: int) -> Cost:
    """Both sides in turns, ``rounds`` each, one unmeasured turn before."""
    stream = answer_reads()
    without, with_live = [], []
    with running_feed() as feed:
        for turn in range(rounds + 1):
            off = cpu_per_token(requests, stream, lambda number, record: None)
            on = cpu_per_token(requests, stream, feeder(feed))
            if turn:
                without.append(off)
                with_live.append(on)
    return Cost(tuple(without), tuple(with_live))


def cpu_per_token(
    requests: int,
    stream: list[bytes],
    then: Callable[[int, RequestRecord], None],
) -> float:
    """CPU seconds per token of reading that many answers and doing ``then`` with each."""
    begun = time.process_time()
    for number in range(requests):
        record = read_answer(number, stream)
        wire_bytes(record)
        then(number, record)
    return (time.process_time() - begun) / (requests * OUTPUT_TOKENS)


def read_answer(number: int, stream: list[bytes]) -> RequestRecord:
    """What the client does with one answer, from its bytes to its record."""
    ask = Ask(
        worker="local",
        seq=number,
        cell=CELL,
        user=0,
        t_intended_s=100.0,
        prompt=(),
        prompt_hash="0",
        prompt_tokens=512,
        output_tokens=OUTPUT_TOKENS,
    )
    exchange = Exchange(t_sent_s=100.001)
    take = exchange.taker()
    for index, data in enumerate(stream):
        # 20 ms to 60 ms apart, never twice the same
        at_s = 100.2 + index * 0.02 + (number % 40) * 0.001
        take(at_s, NO_STAMP, data)
    record = Ended(ask, exchange, at_s, exact=True, secret=None).record()
    if record.outcome != "ok" or len(record.token_us) != OUTPUT_TOKENS:
        raise RuntimeError(f"{record.outcome}: {record.error}")
    return record


def answer_reads() -> list[bytes]:
    """The reads of one answer, one token in each, as vLLM sends them."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    events = []
    for number in range(1, OUTPUT_TOKENS + 1):
        last = "length" if number == OUTPUT_TOKENS else None
        usage = {"prompt_tokens": 512, "completion_tokens": number}
        events.append(text_chunk("word", usage=usage, finish_reason=last))
    total = {"prompt_tokens": 512, "completion_tokens": OUTPUT_TOKENS}
    events.append(sse({"choices": [], "usage": total}) + DONE)
    chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in events]
    return [head + chunks[0], *chunks[1:], b"0\r\n\r\n"]


@contextmanager
def running_feed() -> Iterator[LiveFeed]:
    """Live metrics of a run that is at its last level."""
    feed = live.start("127.0.0.1", 0, named=True)
    try:
        feed.begin(facts(slo=Slo(ttft_s=0.5, tpot_s=0.05)), "local", 0.0)
        for level in LEVELS:
            for backend in ("paged", "contiguous"):
                cell = msgspec.structs.replace(CELL, backend=backend, level=float(level))
                feed.event(
                    RunEvent(t_s=1.0, kind="level_start", cell=cell, detail={"users": level})
                )
        yield feed
    finally:
        feed.close()


def feeder(feed: LiveFeed) -> Callable[[int, RequestRecord], None]:
    """Feeds one record after the other, and a snapshot when it is due."""

    def then(number: int, record: RequestRecord) -> None:
        feed.record(record)
        if number % REQUESTS_PER_SNAPSHOT == 0:
            feed.publish(in_flight=128)

    return then


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="what live metrics cost the load generator")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(measure(options.requests, options.rounds).table())


if __name__ == "__main__":
    main()
