"""A Docker engine for one test: started by hand in a box, gone without a trace.

A Docker daemon changes the machine that it runs on: a bridge, firewall rules, forwarding,
mounts, mounted network namespaces. Here it has network, mount and process namespaces of its
own, so all that ends with it, whatever ends it. What it publishes is published in the box
only: the stack's usual ports are free there, and ``in_box`` runs a program where they are.
slirp4netns, which needs no rule on the machine either, gives the box a way to the package
sources. Images, containers and the socket lie in one folder that is removed.

Needs root and Debian's docker.io, debootstrap and slirp4netns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.compose.files import compose_program

READY_S = 60.0
_CGROUPS = Path("/sys/fs/cgroup")
#: slirp4netns' own name server, which asks the machine's: a container cannot reach one that
#: listens on the machine's loopback
_NAME_SERVER = "10.0.2.3"


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    folder: Path
    #: of the first process in the box
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs: its socket, and Compose as a plugin."""
        return {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_CONFIG": str(self.folder / "client"),
        }

    def in_box(self, *command: str, everything: bool = False) -> list[str]:
        """A command that sees the box's network; with ``everything``, its mounts and processes."""
        more = ["--mount", "--pid"] if everything else []
        return ["nsenter", "--target", str(self.pid), "--net", *more, "--", *command]

    def run(
        self,
        command: list[str],
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a client of the engine; its whole output is in ``stdout``."""
        return subprocess.run(
            command,
            env={**self.environment, **(environment or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )

    def docker(self, *arguments: str, timeout_s: float = 60) -> str:
        """What ``docker`` prints; fails when it does."""
        done = self.run(["docker", *arguments], timeout_s)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout[-3000:]}"
        return done.stdout


@contextmanager
def docker_engine() -> Iterator[Engine]:
    """Start an engine, give it, and end all that came with it."""
    # a socket's path has room for 107 characters, fewer than pytest's folders may take
    folder = Path(tempfile.mkdtemp(prefix="kvknee-engine-"))
    try:
        with _box(folder) as pid, _way_out(pid):
            engine = Engine(folder, pid)
            _install_compose(folder)
            _wait_until_ready(engine)
            yield engine
    finally:
        _remove_cgroups(folder.name)
        shutil.rmtree(folder)


def _install_compose(folder: Path) -> None:
    plugins = folder / "client" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(compose_program())


@contextmanager
def _box(folder: Path) -> Iterator[int]:
    """The daemon as the first process of its namespaces, under an init that reaps."""
    # a file of the machine's own daemon would be read without it
    (folder / "daemon.json").write_text("{}")
    with (folder / "log").open("wb") as log:
        unshare = subprocess.Popen(
            [
                *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", "tini", "-s", "--", "dockerd"),
                *("--config-file", str(folder / "daemon.json")),
                *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
                *("--pidfile", str(folder / "pid"), "--host", f"unix://{folder}/docker.sock"),
                *("--dns", _NAME_SERVER, "--cgroup-parent", f"/{folder.name}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        first = _only_child(unshare)
        yield first.pid
    finally:
        # the kernel kills whatever lives in a process namespace together with its first process
        children = psutil.Process(unshare.pid).children() if unshare.poll() is None else []
        unshare.kill()
        unshare.wait()
        psutil.wait_procs(children, timeout=60)


@contextmanager
def _way_out(pid: int) -> Iterator[None]:
    """A network interface in the box that leads out, and loopback up."""
    ready, done = os.pipe()
    try:
        slirp = subprocess.Popen(
            [
                *("slirp4netns", "--configure", "--disable-host-loopback"),
                *(f"--ready-fd={done}", str(pid), "tap0"),
            ],
            pass_fds=[done],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    finally:
        os.close(done)
    try:
        with os.fdopen(ready, "rb") as pipe:
            assert pipe.read(1) == b"1", "slirp4netns could not set up the network"
        yield
    finally:
        slirp.terminate()
        slirp.wait()


def _only_child(process: subprocess.Popen[bytes]) -> psutil.Process:
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        # a child has the namespaces from its first moment
        children = psutil.Process(process.pid).children()
        if children:
            return children[0]
        time.sleep(0.01)
    raise AssertionError("unshare started nothing")


def _wait_until_ready(engine: Engine) -> None:
    end = time.monotonic() + READY_S
    # `docker info` answers 0 with the daemon down
    while engine.run(["docker", "ps"], timeout_s=30).returncode != 0:
        alive = psutil.pid_exists(engine.pid)
        if not alive or time.monotonic() > end:
            log = (engine.folder / "log").read_text(errors="replace")
            raise AssertionError(f"dockerd did not start:\n{log[-3000:]}")
        time.sleep(0.1)


def _remove_cgroups(name: str) -> None:
    """The empty groups that dockerd leaves, in each hierarchy."""
    for top in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
