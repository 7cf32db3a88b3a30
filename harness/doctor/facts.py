"""What is known of the machine: plain values, gathered once. Absent is None or Unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Device = Literal["gpu", "cpu"]


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read, and why: it is neither good nor bad."""

    reason: str


@dataclass(frozen=True)
class Ran:
    """A command that ended by itself."""

    code: int
    out: str
    error: str


@dataclass(frozen=True)
class Holder:
    """Who listens on a port; what is not told is None."""

    pid: int | None = None
    #: the program's name, never its command line: that may carry a key
    program: str | None = None


@dataclass(frozen=True)
class PortUse:
    """Whether a port of the loopback interface can be had."""

    state: Literal["free", "taken", "denied"]
    holder: Holder = Holder()


@dataclass(frozen=True)
class Disk:
    """The file system that a path lies on, or will lie on."""

    #: the nearest folder that is there already
    folder: Path
    free_bytes: int
    #: None: this file system does not count its files
    free_files: int | None
    writable: bool


@dataclass(frozen=True)
class Memory:
    """Main memory, a container's limit counted in."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Limits:
    """Open files that this process may have: as it is, and as far as it may raise it."""

    soft: int
    hard: int


@dataclass(frozen=True)
class Container:
    """A running container, as far as ports are concerned."""

    name: str
    #: where its Compose project lies; None when Compose did not start it
    project_folder: str | None
    ports: frozenset[int]


@dataclass(frozen=True)
class Daemon:
    """What the Docker daemon says of itself."""

    version: str
    #: where it keeps images and volumes
    root: str | None
    memory_bytes: int | None
    runtimes: frozenset[str] = frozenset()
    #: devices that it offers by the Container Device Interface
    devices: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Docker:
    """Docker on this machine, from the client to the Compose files."""

    #: the client's program; None: not installed
    client: str | None
    #: None when the client is missing; a text when the daemon cannot be used
    daemon: Daemon | str | None = None
    #: Compose's version; None: not installed
    compose: str | Unknown | None = None
    #: the merged Compose files; a text when Compose refuses them
    config: Mapping[str, Any] | str | None = field(default=None, repr=False)
    containers: tuple[Container, ...] = ()
    #: images that are here already; None: not known
    images: frozenset[str] | None = None
    #: NVIDIA's hook is a program of this machine
    nvidia_hook: bool = False
    #: the client talks to a daemon elsewhere, so that this machine's files tell nothing
    remote: bool = False


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver states it."""

    name: str
    driver: str
    uuid: str
    #: None where the driver does not tell (memory shared with the processor)
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True)
class HeldModel:
    """A model as its config describes it."""

    name: str
    architecture: str | None = None
    context_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    weights_bytes: int | None = None
    #: the weights need no download; None: not known
    weights_here: bool | None = None
    #: the hub was not asked: it is switched off, or out of reach
    offline: bool = False
    #: made by kvknee itself when it is first needed
    made_here: bool = False


@dataclass(frozen=True)
class BadModel:
    """Why a model cannot be used, and what to do."""

    name: str
    problem: str
    remedy: str
    #: nobody could be asked: it may still be where the containers keep their models
    unreachable: bool = False


Model = HeldModel | BadModel | Unknown


@dataclass(frozen=True)
class Server:
    """A server of ours whose port is in use."""

    url: str
    healthy: bool
    #: the first model that it lists
    model: str | None = None


@dataclass(frozen=True)
class Prometheus:
    """What answers at Prometheus' address."""

    url: str
    version: str | None = None
    #: why it cannot serve a run; None when it scrapes our servers
    problem: str | None = None


@dataclass(frozen=True)
class LocalStack:
    """What ``kvknee up`` left running."""

    #: port -> server
    ports: Mapping[int, str] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    #: the state's file cannot be read: what to do
    problem: str | None = None


@dataclass(frozen=True)
class Machine:
    """The machine itself."""

    python: tuple[int, int, int]
    system: str
    memory: Memory | Unknown
    #: bytes of /dev/shm; None where the system has none
    shm_bytes: int | Unknown | None
    open_files: Limits | Unknown
    #: use -> where it lies
    disks: Mapping[str, Disk | Unknown]
    #: modules that the servers need and this Python lacks
    missing_modules: tuple[str, ...]
    #: its vLLM uses NVIDIA GPUs, and there is one
    vllm_with_gpu: bool
    numa_library: bool
