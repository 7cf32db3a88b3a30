"""The GPUs as NVIDIA's own tool lists them."""

from __future__ import annotations

import csv
from collections.abc import Callable

from harness.doctor.bounded import Run
from harness.doctor.facts import Gpu, Unknown

_FIELDS = "name,driver_version,uuid,memory.total,memory.free"
#: nvidia-smi's figures are MiB, whatever it is asked to print
_UNIT_BYTES = 2**20


def read_gpus(which: Callable[[str], str | None], run: Run) -> tuple[Gpu, ...] | str:
    """Every GPU, or why the driver shows none."""
    tool = which("nvidia-smi")
    if tool is None:
        return "nvidia-smi is not installed, so there is no NVIDIA driver here"
    answer = run([tool, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"])
    if isinstance(answer, Unknown):
        return answer.reason
    gpus = parse_gpus(answer.out) if answer.code == 0 else ()
    if gpus:
        return gpus
    # it tells its own failures on standard output
    said = (answer.out.strip() or answer.error.strip() or "no GPU listed").splitlines()
    return f"nvidia-smi: {said[0][:120]}"


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """One GPU a line: name, driver, UUID, total and free memory in MiB."""
    rows = [[part.strip() for part in row] for row in csv.reader(text.splitlines())]
    return tuple(
        Gpu(row[0], row[1], row[2], _bytes(row[3]), _bytes(row[4])) for row in rows if len(row) == 5
    )


def _bytes(text: str) -> int | None:
    # "[N/A]" where the GPU uses the machine's own memory
    return int(text) * _UNIT_BYTES if text.isdigit() else None
