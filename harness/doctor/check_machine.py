"""Rows about the machine: Python, memory, open files, disks, and what ``kvknee up`` needs."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.asked import Asked
from harness.doctor.facts import Disk, HeldModel, Limits, Machine, Memory, Model, Unknown
from harness.doctor.rows import WAYS, Row, Way, fault, ok, warning
from harness.load.open_files import SPARE_FILES
from harness.sizes import readable_size

GIB = 2**30
MIB = 2**20
LEAST_PYTHON = (3, 11)
#: vLLM on the CPU with the tiny model holds 2.3 GiB, the contiguous server 0.7 GiB
LEAST_MEMORY = 3 * GIB
#: both of them, a run and its report without swapping
GOOD_MEMORY = 6 * GIB
#: vLLM's processes pass tensors through it: 64 MiB end in "Insufficient space in /dev/shm"
LEAST_SHM = 128 * MIB
GOOD_SHM = 512 * MIB
#: a run of 10,000 requests of 128 tokens writes 15 MB of records, beside scrapes and figures
LEAST_RESULTS = 100 * MIB
GOOD_RESULTS = GIB
#: bytes of a built-in model's folder while it is made, its sources included
BUILT_IN_BYTES = {"tiny": 50 * MIB, "smollm2": GIB}
_TO_SETUP = "run make setup in a clone of kvknee and use its .venv/bin/kvknee"
_LOCAL: tuple[Way, ...] = ("local",)


def check_machine(asked: Asked, machine: Machine, *, stack_runs: bool) -> Iterator[Row]:
    """Rows that hold whatever the stack is."""
    yield _python(machine.python)
    yield _memory(machine.memory, stack_runs=stack_runs)
    yield _open_files(machine.open_files, asked.largest_level)
    yield _results_disk(machine.disks["results"], asked)


def _python(version: tuple[int, int, int]) -> Row:
    text = ".".join(map(str, version))
    if version[:2] < LEAST_PYTHON:
        return fault("python", f"Python {text} is too old", "use Python 3.11 or newer")
    return ok("python", f"Python {text}")


def _memory(memory: Memory | Unknown, *, stack_runs: bool) -> Row:
    if isinstance(memory, Unknown):
        return _untold("memory", memory)
    text = f"{readable_size(memory.available_bytes)} of {readable_size(memory.total_bytes)} free"
    if stack_runs:
        # what is missing is what the servers hold
        return ok("memory", f"{text}, your servers running")
    if memory.available_bytes < LEAST_MEMORY:
        return fault(
            "memory",
            f"{text}; the two servers need {readable_size(LEAST_MEMORY)} with the smallest model",
            "end what else runs here, or raise the container's or virtual machine's limit",
        )
    if memory.available_bytes < GOOD_MEMORY:
        return warning(
            "memory",
            f"{text}; that is enough for the smallest model only",
            f"have {readable_size(GOOD_MEMORY)} free for others",
        )
    return ok("memory", text)


def _open_files(limits: Limits | Unknown, level: int) -> Row:
    if isinstance(limits, Unknown):
        return _untold("open_files", limits)
    needed = level + SPARE_FILES
    text = f"{limits.soft} open files; the largest level, {level}, needs {needed}"
    if limits.soft >= needed:
        return ok("open_files", text)
    if limits.hard >= needed:
        return ok("open_files", f"{text}; a run raises its limit, up to {limits.hard}")
    return fault(
        "open_files",
        f"{text}, and no more than {limits.hard} are allowed",
        "have the limit raised (nofile in limits.conf), or ask for lower --levels",
    )


def _results_disk(disk: Disk | Unknown, asked: Asked) -> Row:
    name, place = "disk_results", f"{asked.results}/"
    if isinstance(disk, Unknown):
        return _untold(name, disk)
    if not disk.writable:
        return fault(
            name,
            f"{disk.folder} cannot be written, and the results go into {place}",
            "name another folder with --results-dir (KVKNEE_RESULTS_DIR)",
        )
    return _room(name, disk, place, LEAST_RESULTS, GOOD_RESULTS, WAYS)


def _room(name: str, disk: Disk, place: str, least: int, good: int, ways: tuple[Way, ...]) -> Row:
    text = f"{readable_size(disk.free_bytes)} free for {place}"
    if disk.free_files == 0:
        return fault(name, f"no file can be made in {disk.folder} (no inodes)", _FREE, ways)
    if disk.free_bytes < least:
        return fault(name, f"{text}; {readable_size(least)} are needed", _FREE, ways)
    if disk.free_bytes < good:
        return warning(name, f"{text}; {readable_size(good)} are comfortable", _FREE, ways)
    return ok(name, text, ways)


_FREE = "free some space there, or name a folder on another disk"


def check_local(asked: Asked, machine: Machine, model: Model) -> Iterator[Row]:
    """Rows about ``kvknee up``, which runs the servers in this Python."""
    yield _engines(machine)
    if asked.local_device == "gpu":
        yield _gpu_engine(machine)
    elif machine.system == "Linux":
        yield _numa(machine)
    yield _shm(machine.shm_bytes)
    yield from _model_disk(asked, machine, model)


def _engines(machine: Machine) -> Row:
    if machine.missing_modules:
        missing = ", ".join(machine.missing_modules)
        return fault("engines", f"not installed in this Python: {missing}", _TO_SETUP, _LOCAL)
    return ok("engines", "vLLM, torch, transformers and fastapi are installed", _LOCAL)


def _gpu_engine(machine: Machine) -> Row:
    if machine.vllm_with_gpu:
        return ok("gpu_engine", "this Python's vLLM uses NVIDIA GPUs", _LOCAL)
    return fault(
        "gpu_engine",
        "this Python's vLLM is built for the CPU, is missing, or there is no /dev/nvidiactl",
        "install vLLM's CUDA build (pip install vllm), or use --cpu",
        _LOCAL,
    )


def _numa(machine: Machine) -> Row:
    if machine.numa_library:
        return ok("libnuma", "libnuma.so.1 is there", _LOCAL)
    return fault(
        "libnuma",
        "libnuma.so.1 is missing; vLLM on the CPU does not start without it",
        "apt-get install libnuma1 (Fedora: dnf install numactl-libs)",
        _LOCAL,
    )


def _shm(free_bytes: int | Unknown | None) -> Row:
    if isinstance(free_bytes, Unknown):
        return _untold("shm", free_bytes, _LOCAL)
    if free_bytes is None:
        return ok("shm", "this system has no /dev/shm, and needs none", _LOCAL)
    text = f"{readable_size(free_bytes)} free in /dev/shm"
    remedy = "mount -o remount,size=1g /dev/shm; in a container start it with --shm-size=1g"
    if free_bytes < LEAST_SHM:
        text = f"{text}; vLLM's processes need {readable_size(LEAST_SHM)}"
        return fault("shm", text, remedy, _LOCAL)
    if free_bytes < GOOD_SHM:
        return warning("shm", f"{text}; a larger model may need more", remedy, _LOCAL)
    return ok("shm", text, _LOCAL)


def _bytes_to_come(model: Model | None) -> int | None:
    """What a model still puts onto a disk; None when nothing, or when it is not known."""
    if not isinstance(model, HeldModel):
        return None
    if model.made_here:
        return BUILT_IN_BYTES[model.name]
    return None if model.weights_here else model.weights_bytes


def _model_disk(asked: Asked, machine: Machine, model: Model) -> Iterator[Row]:
    """Where the model's files will come to lie; nothing when they are there already."""
    needed = _bytes_to_come(model)
    if needed is None or not isinstance(model, HeldModel):
        return
    if model.made_here:
        use, place, remedy = "models", f"{asked.home}/models/", "name another with --home"
    else:
        use, place, remedy = "hub_cache", "the hub's cache", "set HF_HOME to another folder"
    disk = machine.disks[use]
    if isinstance(disk, Unknown):
        yield _untold(f"disk_{use}", disk, _LOCAL)
    elif not disk.writable:
        text = f"{disk.folder} cannot be written, and the model goes into {place}"
        yield fault(f"disk_{use}", text, remedy, _LOCAL)
    else:
        yield _room(f"disk_{use}", disk, place, needed, needed, _LOCAL)


def check_compose_models_disk(machine: Machine, model: Model | None) -> Iterator[Row]:
    """The folder of models that MODELS names; a volume lies with Docker's other data."""
    needed, disk = _bytes_to_come(model), machine.disks.get("compose_models")
    if needed is not None and isinstance(disk, Disk):
        # who may write there is a matter of the containers' user
        yield _room("disk_compose_models", disk, "MODELS", needed, needed, ("compose",))


def _untold(name: str, unknown: Unknown, ways: tuple[Way, ...] = WAYS) -> Row:
    return warning(name, f"cannot be told: {unknown.reason}", "look at it yourself", ways)
