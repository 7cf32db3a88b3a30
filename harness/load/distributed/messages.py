"""What master and workers say to each other, as frozen types and as bytes.

All of it travels as one kind of message of Locust's own connection. Times are the master's
``CLOCK_MONOTONIC`` unless their name says otherwise: a worker maps what it says, and what
it hears, to its own. No message holds an API key.
"""

from __future__ import annotations

import msgspec

from harness.load.phases import Order, Tally
from harness.manifest import BackendInfo
from harness.plan.prompts import ChatPrompts, TokenPrompts
from harness.records import CellKey
from harness.workload import Slo, Workload

#: Locust's name of all messages of this module
CHANNEL = "kvknee"
_KEY = "message"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process runs."""

    name: str
    pid: int
    #: of the running kernel: processes that share it share its monotonic clock
    boot_id: str | None


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Worker: I am here. Also asks for the time."""

    version: str
    scenario: str
    host: Host
    #: the worker's own clock
    own_s: float


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """Master: seen; my clock says so."""

    #: of the hello that is answered
    own_s: float
    t_s: float
    boot_id: str | None


class WiredBackend(msgspec.Struct, frozen=True, kw_only=True):
    """What the master learned of a backend before the load."""

    info: BackendInfo
    #: how plain the request body must be, and whether the server has taken one
    body_step: int
    proven: bool
    token_prompts: TokenPrompts | None = None
    chat_prompts: ChatPrompts | None = None


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Master: this is what will be asked; can you reach the backends?"""

    #: sets this plan apart from others
    nonce: int
    worker: str
    index: int
    of: int
    workload: Workload
    backends: tuple[WiredBackend, ...]


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Worker: I can, or why not."""

    nonce: int
    error: str | None = None
    #: added to the worker's clock to give the master's, and by how much it may be wrong
    clock_offset_s: float = 0.0
    clock_uncertainty_s: float = 0.0
    nice: int | None = None


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """Master: the run begins."""

    run: str
    slo: Slo
    #: whether live metrics are served, and so are worth counting
    live: bool


class EnterLevel(msgspec.Struct, frozen=True, kw_only=True, tag="enter"):
    """Master: the next level; users gather. Without a cell: there is none."""

    run: str
    number: int
    cell: CellKey | None


class StartUsers(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Master: all users are there; yours have these numbers."""

    run: str
    number: int
    first: int
    users: int


class Obey(msgspec.Struct, frozen=True, kw_only=True, tag="obey"):
    """Master: a phase has begun."""

    run: str
    number: int
    order: Order


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Worker: how far the level is; sent when it changes, and once a second."""

    run: str
    number: int
    present: int
    parked: int
    #: None before the users were started
    tally: Tally | None
    #: records written so far in this run
    records: int
    t_s: float


class Shipment(msgspec.Struct, frozen=True, kw_only=True, tag="shipment"):
    """Worker: records and events since the last one, as lines of their journals.

    It is sent again until it is acknowledged.
    """

    run: str
    #: 1, 2, ...
    number: int
    records: bytes
    events: bytes
    #: when it was made: everything recorded before is in this or in an earlier one
    made_s: float
    #: no other follows
    last: bool
    #: the worker's own clock when it was sent
    own_s: float


class Ack(msgspec.Struct, frozen=True, kw_only=True, tag="ack"):
    """Master: a shipment is written down."""

    run: str
    number: int
    #: of the shipment that is answered
    own_s: float
    t_s: float


class Live(msgspec.Struct, frozen=True, kw_only=True, tag="live"):
    """Worker: a snapshot for the live metrics, as ``harness.live`` encodes it."""

    run: str
    line: bytes


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault"):
    """Worker: I cannot go on."""

    run: str
    text: str


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """Master: the run is over; stop what is left and ship all you have."""

    run: str


FromWorker = Hello | Ready | Progress | Shipment | Live | Fault
FromMaster = Welcome | Prepare | Begin | EnterLevel | StartUsers | Obey | Ack | Finish

_FROM_WORKER = msgspec.msgpack.Decoder(FromWorker)
_FROM_MASTER = msgspec.msgpack.Decoder(FromMaster)


def encode(message: FromWorker | FromMaster) -> dict[str, bytes]:
    """As it travels: Locust wants a dictionary."""
    return {_KEY: msgspec.msgpack.encode(message)}


def from_worker(data: object) -> FromWorker:
    """The message of a worker; raises ValueError for anything else."""
    return _FROM_WORKER.decode(_bytes(data))


def from_master(data: object) -> FromMaster:
    """The message of a master; raises ValueError for anything else."""
    return _FROM_MASTER.decode(_bytes(data))


def _bytes(data: object) -> bytes:
    content = data.get(_KEY) if isinstance(data, dict) else None
    if not isinstance(content, bytes):
        raise ValueError("a message without content")
    return content
