"""How the machine is read. Tests put their own readers in."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import psutil

from harness.doctor import bounded
from harness.doctor.facts import Disk, Holder, Limits, LocalStack, Memory, PortUse
from harness.errors import KvkneeError
from harness.observe import prometheus
from harness.stack import local
from harness.stack.health import answers
from harness.stack.ports import HOST
from harness.stack.state import running_backends

#: all that is asked over HTTP is on this machine
_HTTP_S = 2.0
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Probes:
    """The outside. Each returns within some seconds."""

    environment: Mapping[str, str]
    python: tuple[int, int, int]
    system: str
    which: Callable[[str], str | None]
    run: bounded.Run
    port: Callable[[int], PortUse]
    disk: Callable[[Path], Disk]
    memory: Callable[[], Memory]
    shm_bytes: Callable[[], int | None]
    open_files: Callable[[], Limits]
    installed: Callable[[str], bool]
    vllm_with_gpu: Callable[[], bool]
    library: Callable[[str], bool]
    local_stack: Callable[[Path], LocalStack]
    #: whether ``GET <url>/health`` gives 200
    healthy: Callable[[str], bool]
    #: the first model that ``<url>/v1/models`` lists; None: no such page
    served_model: Callable[[str], str | None]
    #: (address, backend -> metrics page) -> version; raises PrometheusFaultError
    prometheus: Callable[[str, Mapping[str, str]], str | None]


def this_machine(environment: Mapping[str, str] | None = None) -> Probes:
    """The real outside."""
    known = dict(os.environ if environment is None else environment)
    return Probes(
        environment=known,
        python=sys.version_info[:3],
        system=platform.system(),
        which=lambda name: shutil.which(name, path=known.get("PATH")),
        run=lambda command, extra=None: bounded.run(command, {**known, **(extra or {})}),
        port=port_use,
        disk=disk,
        memory=memory,
        shm_bytes=shm_bytes,
        open_files=lambda: Limits(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        installed=lambda name: importlib.util.find_spec(name) is not None,
        vllm_with_gpu=local.gpu_present,
        library=has_library,
        local_stack=local_stack,
        healthy=lambda url: answers(url, _HTTP_S),
        served_model=served_model,
        prometheus=prometheus_version,
    )


def port_use(port: int) -> PortUse:
    """Whether a server could listen on the port, tried as servers do it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # a port whose last connections are winding down is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return PortUse("denied")
            return PortUse("taken", _holder(port))
    return PortUse("free")


def _holder(port: int) -> Holder:
    """The listener's process; other users' are hidden from a plain user."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and connection.laddr[1:2] == (port,):
                return Holder(connection.pid, psutil.Process(connection.pid).name())
    return Holder()


def disk(path: Path) -> Disk:
    """The file system of the nearest folder above ``path`` that exists; raises OSError."""
    folder = path.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    stats = os.statvfs(folder)
    return Disk(
        folder=folder,
        # what the super-user keeps for itself is left out
        free_bytes=stats.f_bavail * stats.f_frsize,
        free_files=stats.f_favail if stats.f_files else None,
        writable=folder.is_dir() and os.access(folder, os.W_OK | os.X_OK),
    )


def memory(cgroup: Path = _CGROUP) -> Memory:
    """Main memory; inside a container no more than its limit (cgroup v2) leaves."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        # no container, no limit ("max"), or another system
        return Memory(total, available)
    return Memory(min(total, limit), max(0, min(available, limit - used)))


def shm_bytes(path: Path = Path("/dev/shm")) -> int | None:  # noqa: S108 - it is measured
    """Free bytes of the shared-memory file system; None where there is none."""
    if not path.is_dir():
        return None
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize


def has_library(name: str) -> bool:
    """Whether the system's loader finds a shared library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def local_stack(home: Path) -> LocalStack:
    """The servers that ``kvknee up`` runs in that home."""
    try:
        backends = running_backends(home)
    except KvkneeError as error:
        return LocalStack(problem=str(error))
    return LocalStack(
        ports={int(backend.url.rpartition(":")[2]): backend.name for backend in backends},
        logs={backend.name: backend.log for backend in backends},
    )


def served_model(url: str) -> str | None:
    """The first model of an OpenAI-style server; None when it is none."""
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=_HTTP_S, trust_env=False)
        listed = msgspec.json.decode(answer.content)["data"]
        return str(listed[0]["id"])[:120]
    except (httpx.HTTPError, OSError, msgspec.DecodeError, LookupError, TypeError, ValueError):
        return None


def prometheus_version(url: str, targets: Mapping[str, str]) -> str | None:
    """The version of a Prometheus that scrapes all targets; raises PrometheusFaultError."""
    return prometheus.probe(url, targets, timeout_s=_HTTP_S).version
