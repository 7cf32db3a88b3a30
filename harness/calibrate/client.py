"""The client under test: ``python -m harness.calibrate.client``, a process of its own.

It does what a run does, with a run's parts: StreamClient on gevent, kernel stamps, no full
garbage collection, each user's next request before its last answer is read, one record a
line. Its orders come as one line of JSON on standard input; its last word is a
``ClientReport`` on standard output.

Users begin spread over the length of one answer, so that tokens come spread too, and the
window opens when each of them has had time for two answers.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path

import gevent
import msgspec

from harness.calibrate.truth import ClientReport
from harness.load.client import ClientOptions, StreamClient
from harness.load.clock import Clock, SystemClock
from harness.load.dialect import Dialect
from harness.load.exchange import Ask, Ended
from harness.load.http1 import Endpoint
from harness.load.quiet import QuietProcess
from harness.load.self_check import LagMeter
from harness.load.stamped_socket import StampKeeper
from harness.plan.prompts import FALLBACK_TOKENS, TokenPrompts, prompt_hash
from harness.records import CellKey
from harness.rundir import Journal

_LAG_SAMPLE_S = 0.05


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to do."""

    url: str
    model: str
    #: where its records go
    records: str
    streams: int
    seconds: float
    #: how long one answer takes, for the users' spread
    request_s: float
    prompt_tokens: int
    output_tokens: int
    nonce: int
    #: the core to stay on; None: any
    core: int | None = None


class _Load:
    """All users of the level."""

    def __init__(self, orders: Orders, clock: Clock, journal: Journal) -> None:
        self._orders, self._clock, self._journal = orders, clock, journal
        self._prompts = TokenPrompts(
            FALLBACK_TOKENS, orders.prompt_tokens, seed=0, nonce=orders.nonce
        )
        self._cell = CellKey(
            "simulated", "paced", orders.prompt_tokens, orders.output_tokens, orders.streams
        )
        self._dialect = Dialect(
            orders.model, "completions", prompt_tokens=orders.prompt_tokens, token_ids=True
        )
        self._options = ClientOptions(
            endpoint=Endpoint.from_url(orders.url),
            request_timeout_s=10 * orders.request_s + 60.0,
            idle_timeout_s=60.0,
        )
        self._seq = 0
        self._unread: deque[tuple[StreamClient, Ended]] = deque()
        #: no request is sent after it; set once the users have begun
        self.end_s = float("inf")

    def user(self, number: int) -> None:
        """Request after request until the end; the body of a greenlet."""
        gevent.sleep(self._orders.request_s * number / self._orders.streams)
        client = StreamClient(self._options, self._dialect, self._clock)
        try:
            while self._clock.monotonic() < self.end_s:
                over = client.request(self._ask(number), lambda over: self._ended(client, over))
                if not over.answered:
                    # a server that answers at once with an error is not hammered
                    gevent.sleep(self._orders.request_s)
        finally:
            client.close()

    def settle(self) -> None:
        """Read and record all requests that have ended."""
        while self._unread:
            client, over = self._unread.popleft()
            record = over.record()
            client.judge(record)
            self._journal.append(record)

    def _ended(self, client: StreamClient, over: Ended) -> None:
        self._unread.append((client, over))
        if len(self._unread) == 1:
            gevent.spawn(self.settle)

    def _ask(self, user: int) -> Ask:
        self._seq += 1
        prompt = self._prompts.prompt(self._seq)
        return Ask(
            worker="calibrate",
            seq=self._seq,
            cell=self._cell,
            user=user,
            t_intended_s=self._clock.monotonic(),
            prompt=prompt,
            prompt_hash=prompt_hash(prompt),
            prompt_tokens=self._orders.prompt_tokens,
            output_tokens=self._orders.output_tokens,
        )


def run(orders: Orders, clock: Clock) -> ClientReport:
    """Load as ordered; returns when every request has ended and stands in the records."""
    journal = Journal(Path(orders.records))
    quiet = QuietProcess()
    try:
        with StampKeeper():
            return _run(orders, clock, _Load(orders, clock, journal))
    finally:
        quiet.end()
        journal.close()


def _run(orders: Orders, clock: Clock, load: _Load) -> ClientReport:
    users = [gevent.spawn(load.user, number) for number in range(orders.streams)]
    # all have begun after one answer's time, and had one answer after two
    gevent.sleep(2 * orders.request_s)
    meter = LagMeter(clock)
    open_s, cpu_s = clock.monotonic(), meter.cpu_s()
    close_s = open_s + orders.seconds
    # what is sent in the window is followed to its end under full load
    load.end_s = close_s + orders.request_s
    while (due_s := clock.monotonic() + _LAG_SAMPLE_S) < close_s:
        gevent.sleep(_LAG_SAMPLE_S)
        meter.woke(due_s)
    used_s, ended_s = meter.cpu_s() - cpu_s, clock.monotonic()
    gevent.joinall(users, raise_error=True)
    load.settle()
    return ClientReport(
        open_s=open_s,
        close_s=close_s,
        cpu_ratio=used_s / (ended_s - open_s) if ended_s > open_s else 0.0,
        lag_max_s=meter.worst_s,
    )


def main() -> None:
    """Read the orders, load, report."""
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)
    if orders.core is not None:
        os.sched_setaffinity(0, {orders.core})
    report = run(orders, SystemClock())
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
