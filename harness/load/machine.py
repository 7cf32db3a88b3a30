"""The machine and the libraries of a run, for its manifest; what the client can do on it."""

from __future__ import annotations

import platform
import resource
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from harness import __version__
from harness.calibrate.stored import difference, read_calibration
from harness.load.ports import ephemeral_ports
from harness.nvidia_smi import query_gpus
from harness.records import Scalar
from harness.stack.state import home_folder

#: what the client's own speed depends on
_CLIENT_LIBRARIES = ("gevent", "greenlet", "httptools", "msgspec")
_LIBRARIES = ("locust", "gevent", "greenlet", "httptools", "httpx", "msgspec", "numpy")


def hardware() -> dict[str, Scalar]:
    """What figures depend on: CPU, memory, GPUs where the driver's tool is installed."""
    facts: dict[str, Scalar] = {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": None,
        "gpu_driver": None,
    }
    return facts | parse_gpus(query_gpus("name,driver_version") or "")


def environment(home: Path | None = None) -> dict[str, Scalar]:
    """Versions and limits, for information: they need not match between runs.

    With the calibration on file in ``home``, by default kvknee's home folder.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts: dict[str, Scalar] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "open_files": None if soft == resource.RLIM_INFINITY else soft,
        "ephemeral_ports": ephemeral_ports(),
    }
    facts |= {name: _version(name) for name in _LIBRARIES}
    return facts | calibrated(home_folder() if home is None else home)


def identity() -> dict[str, Scalar]:
    """The machine and the versions for which a calibration of the client holds."""
    facts: dict[str, Scalar] = {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=True),
        "system": platform.platform(),
        "kvknee": __version__,
        "python": platform.python_version(),
    }
    return facts | {name: _version(name) for name in _CLIENT_LIBRARIES}


def calibrated(home: Path) -> dict[str, Scalar]:
    """What ``kvknee calibrate`` found here: the token rate up to which the client is right.

    ``calibrated_tokens_per_s`` is None when no level was right, and absent without a
    calibration or with one of another machine or version; then ``calibration_unused`` says
    what differs.
    """
    found = read_calibration(home)
    if found is None:
        return {}
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.made_wall_s))
    changed = difference(found, identity())
    if changed is not None:
        return {"calibrated_at": when, "calibration_unused": changed}
    return {"calibrated_at": when, "calibrated_tokens_per_s": found.tokens_per_s}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_model(path: Path = Path("/proc/cpuinfo")) -> str | None:
    """The first ``model name`` of Linux' list, else what Python knows."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine() or None


def parse_gpus(text: str) -> dict[str, Scalar]:
    """``name, driver`` lines, one per GPU."""
    rows = [line.rsplit(",", 1) for line in text.splitlines() if "," in line]
    if not rows:
        return {}
    names = ", ".join(name.strip() for name, _ in rows)
    return {"gpus": names, "gpu_driver": rows[0][1].strip()}
