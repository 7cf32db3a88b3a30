"""The NVIDIA GPUs before a night, as ``nvidia-smi`` states them: what is in use, and the clocks."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.nvidia_smi import query_gpus
from harness.sizes import readable_size

_FIELDS = "index,name,utilization.gpu,memory.used,memory.total,clocks.sm,clocks.max.sm"
#: its figures are MiB, whatever it is asked to print
_MIB = 2**20
_BUSY_SHARE, _USED_SHARE = 0.10, 0.10


@dataclass(frozen=True)
class GpuState:
    """One GPU: share of the time in use, bytes, and its SM clock in MHz; None where not told."""

    index: str
    name: str
    busy_share: float | None
    used_bytes: int | None
    total_bytes: int | None
    clock_mhz: int | None
    max_clock_mhz: int | None


def read_gpus() -> tuple[GpuState, ...]:
    """All of this machine; none where the tool is missing, fails or hangs."""
    return parse_gpus(query_gpus(_FIELDS) or "")


def parse_gpus(text: str) -> tuple[GpuState, ...]:
    """One GPU a line, comma-separated; a figure that is no number, such as ``[N/A]``, is None."""
    rows = [[part.strip() for part in row] for row in csv.reader(text.splitlines())]
    return tuple(_state(row) for row in rows if len(row) == len(_FIELDS.split(",")))


def gpu_facts(gpus: Sequence[GpuState]) -> Iterator[str]:
    """A GPU each, in words."""
    for gpu in gpus:
        parts = []
        if gpu.busy_share is not None:
            parts.append(f"{gpu.busy_share:.0%} in use")
        if gpu.used_bytes is not None and gpu.total_bytes is not None:
            used, total = readable_size(gpu.used_bytes), readable_size(gpu.total_bytes)
            parts.append(f"{used} of {total} in use")
        if gpu.clock_mhz is not None:
            most = "" if gpu.max_clock_mhz is None else f" of {gpu.max_clock_mhz}"
            parts.append(f"SM clock {gpu.clock_mhz}{most} MHz")
        yield f"GPU {gpu.index} {gpu.name}: {', '.join(parts) or 'nothing is stated'}"


def gpu_findings(gpus: Sequence[GpuState]) -> Iterator[str]:
    """What may disturb the night."""
    who = "by servers that are up already, or by what disturbs them"
    for gpu in gpus:
        if gpu.busy_share is not None and gpu.busy_share > _BUSY_SHARE:
            yield f"GPU {gpu.index} is not idle: {gpu.busy_share:.0%} in use ({who})"
        used, total = gpu.used_bytes, gpu.total_bytes
        if used is not None and total and used > _USED_SHARE * total:
            held = f"{readable_size(used)} of {readable_size(total)}"
            yield f"GPU {gpu.index}: {held} are in use ({who}): there may be no room for servers"


def _state(row: Sequence[str]) -> GpuState:
    busy, used, total, clock, most = (_number(text) for text in row[2:])
    return GpuState(
        index=row[0],
        name=row[1],
        busy_share=None if busy is None else busy / 100.0,
        used_bytes=None if used is None else used * _MIB,
        total_bytes=None if total is None else total * _MIB,
        clock_mhz=clock,
        max_clock_mhz=most,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
