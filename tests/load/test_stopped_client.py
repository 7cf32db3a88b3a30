"""A client that stood still for 200 ms: its events are flagged, and the server is not blamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from harness.records import RequestRecord, token_times_us
from tests.load.one_request import TOKENS
from tests.load.stream_builder import usage_frame
from tests.support.local_stack import ROOT
from tests.support.scripted_server import (
    DONE,
    PATIENCE_S,
    Peer,
    Request,
    ScriptedServer,
    text_chunk,
)

STOP_S = 0.2
#: the client believes no stamp that is further off (``harness.load.timeline``)
MAPPING_S = 0.0005
#: tokens before, during and after the stop
BEFORE, DURING, AFTER = 2, 10, 2
assert BEFORE + DURING + AFTER == TOKENS


class Stage:
    """The steps of the story, in the order that the test lays down."""

    def __init__(self) -> None:
        self.begun, self.stopped = threading.Event(), threading.Event()
        self.sent, self.goes_on = threading.Event(), threading.Event()
        self.sent_s: list[float] = []

    def script(self, peer: Peer, request: Request) -> None:
        """The server's side."""
        peer.headers()
        for _ in range(BEFORE):
            self.token(peer)
        self.begun.set()
        assert self.stopped.wait(PATIENCE_S)
        for _ in range(DURING):
            time.sleep(STOP_S / DURING)
            self.token(peer)
        self.sent.set()
        assert self.goes_on.wait(PATIENCE_S)
        for _ in range(AFTER):
            self.token(peer)
        for event in (text_chunk("", finish_reason="length"), usage_frame(TOKENS), DONE):
            peer.chunk(event)
        peer.end()

    def token(self, peer: Peer) -> None:
        """One token, and when it was written."""
        self.sent_s.append(time.monotonic())
        peer.chunk(text_chunk("x"))


@pytest.mark.usefixtures("kernel_stamps")
def test_events_that_came_while_the_client_was_stopped_are_flagged() -> None:
    stage = Stage()
    with ScriptedServer(stage.script) as server:
        client = subprocess.Popen(
            [sys.executable, "-m", "tests.load.one_request", server.url],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            assert stage.begun.wait(PATIENCE_S)
            wait_until_read(server.port)
            os.kill(client.pid, signal.SIGSTOP)
            _, status = os.waitpid(client.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            stage.stopped.set()
            assert stage.sent.wait(PATIENCE_S)
            continued_s = time.monotonic()
            os.kill(client.pid, signal.SIGCONT)
            wait_until_read(server.port)
            stage.goes_on.set()
            out, _ = client.communicate(timeout=PATIENCE_S)
        finally:
            client.kill()
            client.wait()
    assert not server.errors
    record = msgspec.json.decode(out, type=RequestRecord)
    assert (record.outcome, record.clock, len(record.token_us)) == ("ok", "kernel", TOKENS)
    assert record.t_sent_s is not None
    # one read took all of the stop: all but its last event have an upper bound, and say so
    during = range(BEFORE, BEFORE + DURING)
    assert set(during[:-1]) <= set(record.coalesced)
    assert during[-1] not in record.coalesced
    # the last one has the kernel's time, which is before the client went on, give or take the
    # error of mapping the kernel's clock
    arrived_s = record.t_sent_s + token_times_us(record)[during[-1]] / 1e6
    assert stage.sent_s[during[-1]] - MAPPING_S <= arrived_s <= continued_s + MAPPING_S


def wait_until_read(server_port: int) -> None:
    """Until the client has taken all that the kernel holds for it."""
    give_up_s = time.monotonic() + PATIENCE_S
    while unread_bytes(server_port):
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


def unread_bytes(server_port: int) -> int:
    """What waits in the client's socket (proc(5), ``/proc/net/tcp``: tx_queue:rx_queue)."""
    remote = f":{server_port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if row[2].endswith(remote))
