"""Connections of an open loop: as many as are in flight at once, kept for the next request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from harness.load.client import StreamClient
from harness.load.clock import Clock
from harness.load.exchange import Ask, Ended
from harness.load.preflight import PreparedBackend
from harness.records import RequestRecord


class Client(Protocol):
    """What an open loop needs of a client: one request at a time."""

    def request(
        self,
        ask: Ask,
        on_ended: Callable[[Ended], None],
        on_sent: Callable[[float], None] | None = None,
    ) -> Ended:
        """Make one request; ``on_ended`` is called exactly once, also when it is killed."""
        ...

    def judge(self, record: RequestRecord) -> None:
        """Learn from a record."""
        ...

    def close(self) -> None:
        """Drop the kept connection."""
        ...


ClientMaker = Callable[[PreparedBackend, Clock], Client]


def stream_client(backend: PreparedBackend, clock: Clock) -> Client:
    """The client of every real run."""
    return StreamClient(backend.options, backend.dialect, clock)


@dataclass(frozen=True)
class Slot:
    """One client and its number, which stands in the records as the user."""

    number: int
    client: Client


class ClientPool:
    """Clients that are free, by backend; the one used last goes first: it is still connected."""

    def __init__(
        self, backends: Mapping[str, PreparedBackend], clock: Clock, make: ClientMaker
    ) -> None:
        self._backends = backends
        self._clock = clock
        self._make = make
        self._free: dict[str, list[Slot]] = {name: [] for name in backends}
        self._made = dict.fromkeys(backends, 0)

    def take(self, backend: str) -> Slot:
        """A client that nobody uses."""
        free = self._free[backend]
        if free:
            return free.pop()
        number = self._made[backend]
        self._made[backend] += 1
        return Slot(number, self._make(self._backends[backend], self._clock))

    def give_back(self, backend: str, slot: Slot) -> None:
        """Its request is over."""
        self._free[backend].append(slot)

    def close(self) -> None:
        """Drop the connections that nobody uses."""
        for free in self._free.values():
            for slot in free:
                slot.client.close()
