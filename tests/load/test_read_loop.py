"""Many sockets watched as one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import gevent
import pytest

from harness.load.read_loop import ReadLoop
from tests.support.scripted_server import PATIENCE_S

Pair = tuple[socket.socket, socket.socket]


class ByHandClock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


class Rig:
    """A loop on the hub of this thread, and socket pairs in it."""

    def __init__(self) -> None:
        self.clock = ByHandClock()
        self.rests: list[float] = []
        self.loop = ReadLoop(gevent.get_hub().loop.io, self.clock, self.rests.append)
        self.got: list[int] = []
        self._open: list[Pair] = []

    def pair(self, number: int) -> Pair:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._open.append((ours, theirs))

        def readable() -> None:
            ours.recv(100)
            self.got.append(number)

        self.loop.add(ours.fileno(), readable)
        return ours, theirs

    def close(self) -> None:
        for ours, theirs in self._open:
            if ours.fileno() >= 0:
                self.loop.remove(ours.fileno())
            ours.close()
            theirs.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.close()


def test_one_look_serves_every_socket_that_has_something(rig: Rig) -> None:
    peers = [rig.pair(number)[1] for number in range(3)]
    for number in (0, 2):
        peers[number].send(b"x")
    rig.loop.look()
    assert sorted(rig.got) == [0, 2]
    rig.loop.look()
    assert sorted(rig.got) == [0, 2]


def test_the_hub_looks_by_itself(rig: Rig) -> None:
    peer = rig.pair(7)[1]
    peer.send(b"x")
    with gevent.Timeout(PATIENCE_S):
        while not rig.got:
            gevent.sleep(0.001)
    assert rig.got == [7]


def test_a_socket_that_an_earlier_callback_removed_is_passed_over(rig: Rig) -> None:
    first, peer = rig.pair(0)
    second, other = rig.pair(1)
    rig.loop.remove(first.fileno())
    rig.loop.remove(second.fileno())

    def end_all() -> None:
        rig.got.append(9)
        rig.loop.remove(first.fileno())
        rig.loop.remove(second.fileno())

    for sock in (first, second):
        rig.loop.add(sock.fileno(), end_all)
    peer.send(b"x")
    other.send(b"x")
    rig.loop.look()
    assert rig.got == [9]
    # a second removal is no fault, and the hub does not wait for a loop without sockets
    rig.loop.remove(first.fileno())


@pytest.mark.parametrize(("reads", "busy"), [(625, False), (626, True)])
def test_it_rests_where_more_than_five_thousand_packets_come_in_a_second(
    rig: Rig, reads: int, busy: bool
) -> None:
    """625 in 1/8 s are 5,000 a second."""
    peer = rig.pair(0)[1]
    for _ in range(reads - 1):
        peer.send(b"x")
        rig.loop.look()
    assert rig.loop.busy is False
    rig.clock.now_s += 0.125
    peer.send(b"x")
    rig.loop.look()
    assert rig.loop.busy is busy
    assert rig.rests == []
    rig.loop.look()
    assert rig.rests == [0.0005] * busy
    # and no longer when it is over
    rig.clock.now_s += 0.125
    rig.loop.look()
    assert rig.loop.busy is False
