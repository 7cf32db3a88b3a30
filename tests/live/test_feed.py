"""The server process: what it serves, what it costs the load, how it ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from harness.errors import OptionError
from harness.live import feed as live
from harness.live.feed import LiveFeed, LiveServer
from harness.live.server import Scrapes
from harness.live.snapshot import Snapshot
from harness.records import CellKey
from harness.workload import Slo
from tests.live.support import facts, level_end, level_start, names, record, samples, value

C16 = {"backend": "paged", "mode": "paged", "level": "16"}
PATIENCE_S = 20.0


@pytest.fixture
def feed() -> Iterator[LiveFeed]:
    made = live.start("127.0.0.1", 0, named=True)
    yield made
    made.close()


def url(feed: LiveFeed) -> str:
    assert feed.url is not None
    return feed.url


def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def ok_count(feed: LiveFeed) -> float | None:
    page = samples(httpx.get(url(feed)).text)
    return value(page, "kvknee_requests_total", **C16, outcome="ok")


def test_a_run_from_begin_to_end(feed: LiveFeed) -> None:
    assert samples(httpx.get(url(feed)).text) == {}
    feed.begin(facts(slo=Slo(ttft_s=0.5)), "local", wall_offset_s=0.0)
    feed.event(level_start())
    feed.record(record())
    feed.publish(in_flight=5)
    until(lambda: ok_count(feed) == 1)
    page = samples(httpx.get(url(feed)).text)
    assert value(page, "kvknee_requests_in_flight", **C16) == 5
    assert "kvknee_run_info" in names(page)
    feed.record(record())
    feed.event(level_end())
    feed.end()
    until(lambda: "kvknee_run_info" not in names(samples(httpx.get(url(feed)).text)))
    page = samples(httpx.get(url(feed)).text)
    # the last request was sent with the end
    assert value(page, "kvknee_requests_total", **C16, outcome="ok") == 2
    assert value(page, "kvknee_users", **C16) == 0
    # the next run resets it
    feed.begin(facts("r2"), "local", wall_offset_s=0.0)
    until(lambda: ok_count(feed) is None)


def test_the_page_comes_in_prometheus_formats(feed: LiveFeed) -> None:
    plain = httpx.get(url(feed))
    assert plain.headers["content-type"].startswith("text/plain; version=")
    openmetrics = httpx.get(url(feed), headers={"Accept": "application/openmetrics-text"})
    assert openmetrics.text.endswith("# EOF\n")
    base = url(feed).removesuffix("/metrics")
    assert "/metrics" in httpx.get(base).text
    assert httpx.get(base + "/other").status_code == 404


def test_without_a_port_there_is_nothing_to_do() -> None:
    feed = live.start("127.0.0.1", None, named=True)
    assert feed.url is None
    feed.begin(facts(), "local", 0.0)
    feed.record(record())
    feed.event(level_start())
    feed.publish(1)
    feed.end()
    feed.close()


def test_a_taken_port_that_was_named_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OptionError) as caught:
            live.start("127.0.0.1", port, named=True)
    text = str(caught.value)
    assert text.startswith(f"--metrics-port: {port} is not valid; expected a port that is free")
    assert "Address already in use" in text
    assert caught.value.exit_code == 2


def test_a_taken_port_that_was_not_named_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, caplog.at_level(logging.WARNING):
        feed = live.start("127.0.0.1", other.getsockname()[1], named=False)
    assert feed.url is None
    (line,) = caplog.messages
    assert "no live metrics" in line
    assert "--metrics-port" in line


def test_an_address_that_is_none() -> None:
    with pytest.raises(OptionError, match="--metrics-host: 'no such host' is not valid"):
        live.start("no such host", 0, named=True)


def test_the_port_is_free_after_the_end() -> None:
    feed = live.start("127.0.0.1", 0, named=True)
    port = int(url(feed).split(":")[2].split("/")[0])
    feed.begin(facts(), "local", 0.0)
    feed.close()
    feed.close()
    again = live.start("127.0.0.1", port, named=True)
    again.close()


def test_a_server_that_stands_still_does_not_hold_the_load_up(feed: LiveFeed) -> None:
    server = feed._server
    assert server is not None
    pid = server._process.pid
    feed.begin(facts(), "local", 0.0)
    until(lambda: "kvknee_run_info" in names(samples(httpx.get(url(feed)).text)))
    os.kill(pid, signal.SIGSTOP)
    try:
        sent = 0
        # each snapshot has about a kB and the pipe room for 1 MB: the last find none
        for number in range(3000):
            feed.event(level_start())
            feed.record(record(seq=number))
            before = len(server._rest)
            feed.publish(in_flight=1)
            sent += before == 0
        assert 0 < sent < 3000
        # what is kept is one message at most
        assert len(server._rest) < 20_000
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: server.ready)
    feed.publish(in_flight=1)
    # cumulative: nothing is lost
    until(lambda: ok_count(feed) == 3000)


def test_a_server_that_died_does_not_hurt_the_load(feed: LiveFeed) -> None:
    server = feed._server
    assert server is not None
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    feed.begin(facts(), "local", 0.0)
    feed.record(record())
    feed.publish(1)
    feed.end()


def test_the_key_does_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    feed = live.start("127.0.0.1", 0, named=True)
    server = feed._server
    assert server is not None
    if sys.platform == "linux":
        with open(f"/proc/{server._process.pid}/environ", "rb") as file:  # noqa: PTH123
            assert b"sk-secret" not in file.read()
    feed.close()


def test_a_scraper_that_was_there_gets_the_last_figures() -> None:
    now = [100.0]
    scrapes = Scrapes(lambda: now[0])
    # nobody ever came
    assert not scrapes.wait_for_one_after(100.0, lately_s=10, limit_s=0)
    scrapes.served(95.0)
    # it came 5 s ago: worth waiting for, though not for ever
    assert not scrapes.wait_for_one_after(100.0, lately_s=10, limit_s=0)
    scrapes.served(100.5)
    assert scrapes.wait_for_one_after(100.0, lately_s=10, limit_s=0)
    now[0] = 200.0
    # it has gone
    assert not scrapes.wait_for_one_after(200.0, lately_s=10, limit_s=60)


def test_messages_are_sent_whole_or_kept() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = LiveServer(listener)
    try:
        server.send(facts(), wait_s=PATIENCE_S)
        server.send(Snapshot(run="r1", worker="w", seq=1), wait_s=PATIENCE_S)
        assert server.ready
    finally:
        server.stop()


def test_a_scraper_that_goes_away_is_no_news(feed: LiveFeed) -> None:
    port = int(url(feed).split(":")[2].split("/")[0])
    feed.begin(facts(), "local", 0.0)
    for number in range(200):
        feed.event(level_start(CellKey("paged", "paged", 1, 1, float(number + 1))))
    feed.publish(1)
    until(lambda: len(httpx.get(url(feed)).content) > 1_000_000)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        client.recv(1)
    assert httpx.get(url(feed)).status_code == 200
