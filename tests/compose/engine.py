"""A Docker engine for one test: started by hand in a box, gone without a trace.

A Docker daemon changes the machine that it runs on: a bridge, firewall rules, forwarding,
mounts, mounted network namespaces. Here it has network, mount and process namespaces of its
own, so all that ends with it, whatever ends it. What it publishes is published in the box
only: the stack's usual ports are free there, and ``in_box`` runs a program where they are.
slirp4netns, which needs no rule on the machine either, gives the box a way to the package
sources. Images and containers lie on a disk of the box's own, in a file of one folder that is
removed.

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

from tests.compose.ability import NEEDED_BYTES
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
    def disk(self) -> Path:
        """Where images and containers lie, as the box sees it."""
        return self.folder / "disk"

    def seen(self, path: Path) -> Path:
        """A path of the box as it is seen from outside, its mounts included."""
        return Path(f"/proc/{self.pid}/root{path}")

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
        with _box() as pid, _way_out(pid):
            engine = Engine(folder, pid)
            _install_compose(folder)
            mount_disk(engine)
            with _daemon(engine):
                yield engine
    finally:
        _remove_cgroups(folder.name)
        shutil.rmtree(folder)


def _install_compose(folder: Path) -> None:
    plugins = folder / "client" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(compose_program())


@contextmanager
def _box() -> Iterator[int]:
    """Namespaces whose first process is an init that reaps; they end with it."""
    unshare = subprocess.Popen(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"),
            *("--mount-proc", "tini", "-s", "--", "sleep", "infinity"),
        ],
        stdin=subprocess.DEVNULL,
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


def mount_disk(engine: Engine) -> None:
    """A disk of its own for the engine, in one file: several 100,000 files go at once with it.

    It is mounted in the box only, without journal and barriers: nothing on it outlives the
    test. Where that cannot be done it stays an ordinary folder, which is slower.
    """
    engine.disk.mkdir()
    image = engine.folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(NEEDED_BYTES)
    format_it = ["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)]
    options = "loop,noatime,nobarrier,noinit_itable"
    mount = engine.in_box("mount", "-o", options, str(image), str(engine.disk), everything=True)
    for command in (format_it, mount):
        try:
            done = subprocess.run(command, capture_output=True, timeout=60)
        except FileNotFoundError:
            return
        if done.returncode != 0:
            return


@contextmanager
def _daemon(engine: Engine) -> Iterator[None]:
    """dockerd in the box, until it is over."""
    folder = engine.folder
    # a file of the machine's own daemon would be read without it
    (folder / "daemon.json").write_text("{}")
    command = [
        *("dockerd", "--config-file", str(folder / "daemon.json")),
        *("--data-root", str(engine.disk / "data"), "--exec-root", str(folder / "exec")),
        *("--pidfile", str(folder / "pid"), "--host", f"unix://{folder}/docker.sock"),
        *("--dns", _NAME_SERVER, "--cgroup-parent", f"/{folder.name}"),
    ]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            engine.in_box(*command, everything=True),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_ready(engine, daemon)
        yield
    finally:
        # nsenter hands no signal on: what it runs is ended as the box's own
        for child in psutil.Process(daemon.pid).children() if daemon.poll() is None else []:
            child.terminate()
        try:
            daemon.wait(timeout=30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


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


def _wait_until_ready(engine: Engine, daemon: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + READY_S
    # `docker info` answers 0 with the daemon down
    while engine.run(["docker", "ps"], timeout_s=30).returncode != 0:
        if daemon.poll() is not None or time.monotonic() > end:
            log = (engine.folder / "log").read_text(errors="replace")
            raise AssertionError(f"dockerd did not start:\n{log[-3000:]}")
        time.sleep(0.1)


def _remove_cgroups(name: str) -> None:
    """The empty groups that dockerd leaves, in each hierarchy."""
    for top in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
