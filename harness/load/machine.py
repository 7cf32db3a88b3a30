"""The machine and the libraries of a run, for its manifest."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from harness.records import Scalar

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
    tool = shutil.which("nvidia-smi")
    return facts | (_gpus(tool) if tool else {})


def environment() -> dict[str, Scalar]:
    """Versions, for information: they need not match."""
    facts: dict[str, Scalar] = {
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    for name in _LIBRARIES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    return facts


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


def _gpus(tool: str) -> dict[str, Scalar]:
    """Names and driver version as ``nvidia-smi`` prints them; None when it fails."""
    command = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse_gpus(answer.stdout)


def parse_gpus(text: str) -> dict[str, Scalar]:
    """``name, driver`` lines, one per GPU."""
    rows = [line.rsplit(",", 1) for line in text.splitlines() if "," in line]
    if not rows:
        return {}
    names = ", ".join(name.strip() for name, _ in rows)
    return {"gpus": names, "gpu_driver": rows[0][1].strip()}
