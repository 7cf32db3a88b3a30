"""The client's times: stamps, limits, clock steps, TLS."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from pathlib import Path

import gevent
import pytest

from harness.load import stamped_socket
from harness.load.clock import SystemClock, clock_step_s, wall_offset_s
from harness.load.stamped_socket import StampKeeper
from harness.records import token_times_us
from tests.load.client_kit import make_ask, make_client, once, perform
from tests.load.stream_builder import usage_frame
from tests.support.scripted_server import (
    DONE,
    PATIENCE_S,
    Peer,
    Request,
    ScriptedServer,
    text_chunk,
)

X = text_chunk("x")
END = (text_chunk("", finish_reason="length"), usage_frame(3, 4), DONE)


def finish(peer: Peer) -> None:
    for event in END:
        peer.chunk(event)
    peer.end()


@pytest.mark.usefixtures("kernel_stamps")
def test_nearly_all_reads_carry_the_kernels_stamp() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        for _ in range(3):
            peer.chunk(X)
        finish(peer)

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        clocks = [perform(client).clock for _ in range(50)]
        client.close()
    assert clocks.count("kernel") >= 49


@pytest.mark.usefixtures("kernel_stamps")
def test_arrivals_are_exact_while_the_client_is_busy() -> None:
    busy, sent_s = threading.Event(), [0.0]

    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(X)
        assert busy.wait(PATIENCE_S)
        sent_s[0] = time.monotonic()
        peer.chunk(X)
        peer.chunk(X)
        finish(peer)

    def block() -> None:
        while not server.requests:
            gevent.sleep(0.001)
        gevent.sleep(0.01)
        busy.set()
        # the whole process stands still: no greenlet can read
        time.sleep(0.4)

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        blocker = gevent.spawn(block)
        record = perform(client)
        blocker.join()
        client.close()
    assert record.clock == "kernel"
    assert record.t_sent_s is not None
    last_s = record.t_sent_s + token_times_us(record)[-1] / 1e6
    # read 0.4 s late, measured within a scheduler's whim of the truth
    assert 0 <= last_s - sent_s[0] < 0.2


@pytest.mark.usefixtures("kernel_stamps")
def test_what_waited_together_is_one_read_however_much_it_is() -> None:
    waiting = threading.Event()
    # 300 events of about 500 bytes: more than one call of the system hands over
    large = text_chunk("y" * 400)

    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(X)
        assert waiting.wait(PATIENCE_S)
        for _ in range(300):
            peer.chunk(large)
        waiting.clear()
        finish(peer)

    def block() -> None:
        while not server.requests:
            gevent.sleep(0.001)
        gevent.sleep(0.01)
        waiting.set()
        # no greenlet can read meanwhile
        while waiting.is_set():
            time.sleep(0.001)

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        blocker = gevent.spawn(block)
        record = perform(client, make_ask(output_tokens=301))
        blocker.join()
        client.close()
    assert len(record.token_us) == 301
    # events 1 to 299 are upper bounds, the last of the 300 has the kernel's time
    assert set(range(1, 300)) <= set(record.coalesced)


@pytest.mark.usefixtures("kernel_stamps")
def test_b53_the_headers_are_no_first_token() -> None:
    headers, gate, opened_s = threading.Event(), threading.Event(), [0.0]

    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        # until the client's kernel has them, and so has stamped them
        peer.wait_received()
        headers.set()
        assert gate.wait(PATIENCE_S)
        for _ in range(3):
            peer.chunk(X)
        finish(peer)

    def open_gate() -> None:
        while not headers.is_set():
            gevent.sleep(0.001)
        opened_s[0] = time.monotonic()
        gate.set()

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        opener = gevent.spawn(open_gate)
        record = perform(client)
        opener.join()
        client.close()
    assert record.t_sent_s is not None
    assert record.headers_s is not None
    # headers came before the gate opened, the first token after it
    assert record.t_sent_s + record.headers_s < opened_s[0]
    assert record.t_sent_s + record.token_us[0] / 1e6 > opened_s[0] - 1e-5


def test_silence_ends_by_the_idle_timeout() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(X)
        peer.wait_closed()
        peer.close()

    with ScriptedServer(script) as server:
        record = once(server.url, idle_timeout_s=1.0)
    assert (record.outcome, record.error) == (
        "timeout",
        "nothing received for 1 s (--idle-timeout)",
    )
    assert len(record.token_us) == 1


def test_a_server_that_accepts_and_never_answers_ends_by_the_idle_timeout() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.wait_closed()
        peer.close()

    with ScriptedServer(script) as server:
        record = once(server.url, idle_timeout_s=0.1)
    assert record.outcome == "timeout"
    assert record.headers_s is None


def test_an_endless_trickle_ends_by_the_request_timeout() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        while True:
            peer.chunk(b": ping\n\n")
            time.sleep(0.02)

    with ScriptedServer(script) as server:
        client = make_client(server.url, request_timeout_s=0.3, idle_timeout_s=0.2)
        record = perform(client)
    assert (record.outcome, record.error) == (
        "timeout",
        "no end within 0.3 s (--request-timeout)",
    )
    assert record.t_sent_s is not None
    assert record.t_end_s - record.t_sent_s >= 0.29


class SteppedClock(SystemClock):
    """A wall clock that somebody sets back while a request is under way."""

    def __init__(self) -> None:
        self.step_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.step_s


@pytest.mark.usefixtures("kernel_stamps")
def test_b47_a_clock_set_back_leaves_times_positive_and_is_on_record() -> None:
    clock = SteppedClock()

    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        clock.step_s = -0.5
        for _ in range(3):
            peer.chunk(X)
        finish(peer)

    with ScriptedServer(script) as server:
        client = make_client(server.url, clock=clock)
        record = perform(client)
        client.close()
    assert record.clock_step_s == pytest.approx(-0.5, abs=0.01)
    assert record.clock == "monotonic"
    assert all(us >= 0 for us in record.token_us)
    assert record.token_us[0] > 0


class FakeClock:
    def __init__(self, *times: tuple[float, float, float]) -> None:
        """Triples: monotonic before, wall, monotonic after."""
        self._monotonic = [t for before, _, after in times for t in (before, after)]
        self._wall = [wall for _, wall, _ in times]

    def monotonic(self) -> float:
        return self._monotonic.pop(0)

    def wall(self) -> float:
        return self._wall.pop(0)


def test_the_offset_is_that_of_the_tightest_sample() -> None:
    # brackets of 3, 1 and 2 s: the second counts, 100 - (5 + 6) / 2 = 94.5
    clock = FakeClock((0, 90, 3), (5, 100, 6), (7, 110, 9))
    assert wall_offset_s(clock) == 94.5


def test_a_step_is_more_than_sampling_noise() -> None:
    assert clock_step_s(94.5, 94.5004) is None
    assert clock_step_s(94.5, 94.0) == -0.5


def test_without_the_option_the_monotonic_clock_is_used_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stamped_socket, "request_stamps", lambda _: False)

    def script(peer: Peer, request: Request) -> None:
        peer.stream(X, X, X, *END)

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        record = perform(client)
        client.close()
    assert (record.outcome, record.clock) == ("ok", "monotonic")
    assert len(record.token_us) == 3


def test_another_system_has_no_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with StampKeeper() as keeper:
        assert not keeper.supported


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def server_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.mark.usefixtures("kernel_stamps")
def test_stamps_survive_tls(certificate: tuple[Path, Path]) -> None:
    gate = threading.Event()

    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(X)
        assert gate.wait(PATIENCE_S)
        peer.chunk(X)
        # more than one TLS record (16 KiB) in one event
        peer.chunk(b": " + b"c" * 40_000 + b"\n\n" + X)
        finish(peer)

    trust = ssl.create_default_context(cafile=str(certificate[0]))
    with ScriptedServer(script, tls=server_context(certificate)) as server:
        client = make_client(server.url, tls=trust)
        opener = gevent.spawn_later(0.05, gate.set)
        first = perform(client)
        opener.join()
        second = perform(client)
        client.close()
    assert (first.outcome, first.clock, len(first.token_us)) == ("ok", "kernel", 3)
    assert first.tls_s is not None
    assert first.tls_s > 0
    assert (second.outcome, second.tls_s) == ("ok", None)
    assert server.connections == 1


def test_a_certificate_that_is_not_trusted_is_a_failure_to_connect(
    certificate: tuple[Path, Path],
) -> None:
    with ScriptedServer(lambda peer, _: peer.close(), tls=server_context(certificate)) as server:
        record = once(server.url)
    assert record.outcome == "connect"
    assert "certificate verify failed" in (record.error or "")


def test_plain_http_on_a_tls_port_is_a_failure() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.close()

    with ScriptedServer(script) as server:
        url = server.url.replace("http:", "https:")
        # the server waits for a request line that never comes; the client's limit ends it
        record = once(url, request_timeout_s=0.3)
    assert record.outcome == "connect"
