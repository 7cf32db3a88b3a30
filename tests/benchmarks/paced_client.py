"""Our client in a closed loop, as a process of its own whose CPU time can be told.

    python -m tests.benchmarks.paced_client URL JOURNAL STREAMS TOKENS ANSWERS SPREAD

What a run does for each token is in it: the stream client, reading the answers between the
events, a line in a journal. Users begin spread over one answer, so that they end one by one,
or (SPREAD 0) all at once.
Prints the CPU and wall seconds from the first request to the last record, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import gevent

from harness.load.client import ClientOptions, StreamClient
from harness.load.clock import SystemClock
from harness.load.dialect import Dialect
from harness.load.exchange import Ask, Ended
from harness.load.http1 import Endpoint
from harness.load.quiet import QuietProcess
from harness.load.reader import AnswerReader
from harness.load.stamped_socket import StampKeeper
from harness.plan.prompts import prompt_hash
from harness.records import CellKey, RequestRecord
from harness.rundir import Journal
from tests.benchmarks.paced import ITL_S, Load

PROMPT_TOKENS = 16


class PacedLoad:
    """The users of one run."""

    def __init__(self, url: str, journal: Journal, load: Load) -> None:
        self._load = load
        self._journal = journal
        self._clock = SystemClock()
        self._reader: AnswerReader[None] = AnswerReader(self._keep, self._clock)
        self._dialect = Dialect(
            "simulated", "completions", prompt_tokens=PROMPT_TOKENS, token_ids=True
        )
        self._options = ClientOptions(
            Endpoint.from_url(url), request_timeout_s=300, idle_timeout_s=60
        )
        self._cell = CellKey("paced", "paged", PROMPT_TOKENS, load.tokens, float(load.streams))

    def run(self) -> None:
        """All requests, to the last record."""
        load = self._load
        spread_s = load.tokens * ITL_S / load.streams * load.spread
        users = [gevent.spawn_later(i * spread_s, self._user, i) for i in range(load.streams)]
        gevent.joinall(users, raise_error=True)
        self._reader.drain()

    def _user(self, number: int) -> None:
        client = StreamClient(self._options, self._dialect, self._clock)
        for turn in range(self._load.answers):
            client.request(self._ask(number, turn), self._over)
        client.close()

    def _over(self, over: Ended) -> None:
        self._reader.put(None, over)

    def _keep(self, _: None, record: RequestRecord) -> None:
        self._journal.append(record)

    def _ask(self, user: int, turn: int) -> Ask:
        prompt = (user + 1, turn + 1, *range(PROMPT_TOKENS - 2))
        return Ask(
            worker="local",
            seq=turn * self._load.streams + user,
            cell=self._cell,
            user=user,
            t_intended_s=self._clock.monotonic(),
            prompt=prompt,
            prompt_hash=prompt_hash(prompt),
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=self._load.tokens,
        )


def main() -> None:
    """Run and print."""
    url, path, *numbers = sys.argv[1:]
    journal = Journal(Path(path))
    load = PacedLoad(url, journal, Load(*map(int, numbers)))
    quiet = QuietProcess()
    with StampKeeper():
        cpu_s, wall_s = time.process_time(), time.monotonic()
        load.run()
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    quiet.end()
    journal.close()
    print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s}))


if __name__ == "__main__":
    main()
