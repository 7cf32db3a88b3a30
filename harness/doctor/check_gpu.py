"""Rows about the GPU, when a GPU is to be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.doctor.asked import Asked
from harness.doctor.facts import Daemon, Docker, Gpu, HeldModel, Model, Unknown
from harness.doctor.gpu_shares import GpuShare
from harness.doctor.rows import Row, Way, fault, ok, warning
from harness.sizes import readable_size

_COMPOSE: tuple[Way, ...] = ("compose",)
_CPU_INSTEAD = "or use the CPU: kvknee doctor --cpu tells how"
_SEE_WHO = "nvidia-smi shows who holds it; end that, or set a smaller share"


def gpu_ways(asked: Asked) -> tuple[Way, ...]:
    """The ways that are to run on a GPU."""
    devices = {"compose": asked.compose_device, "local": asked.local_device}
    return tuple(way for way in asked.ways if devices[way] == "gpu")


def check_driver(asked: Asked, gpus: tuple[Gpu, ...] | str | Unknown) -> Iterator[Row]:
    """Whether there is a GPU; no row when nothing is to run on one."""
    ways = gpu_ways(asked)
    if not ways:
        return
    if isinstance(gpus, tuple):
        names = ", ".join(gpu.name for gpu in gpus)
        yield ok("gpu_driver", f"{names}; driver {gpus[0].driver}", ways)
        return
    why = gpus.reason if isinstance(gpus, Unknown) else gpus
    yield fault("gpu_driver", f"no NVIDIA GPU: {why}", f"install its driver, {_CPU_INSTEAD}", ways)


def check_runtime(asked: Asked, docker: Docker | Unknown) -> Iterator[Row]:
    """Docker needs NVIDIA's hook, its runtime, or GPUs as devices of the CDI."""
    if "compose" not in gpu_ways(asked) or not isinstance(docker, Docker):
        return
    daemon, name = docker.daemon, "gpu_runtime"
    if not isinstance(daemon, Daemon):
        return
    if "nvidia" in daemon.runtimes or docker.nvidia_hook:
        yield ok(name, "Docker knows NVIDIA's container runtime", _COMPOSE)
        return
    if any(device.startswith("nvidia.com/gpu") for device in daemon.devices):
        yield ok(name, "Docker offers the GPU as a CDI device", _COMPOSE)
        return
    found = 'Docker knows no NVIDIA runtime (it would say: could not select device driver "nvidia")'
    if docker.remote:
        yield warning(name, found, "see that the machine of DOCKER_HOST has it", _COMPOSE)
        return
    yield fault(
        name,
        found,
        "install nvidia-container-toolkit, then sudo nvidia-ctk runtime configure "
        "--runtime=docker and sudo systemctl restart docker",
        _COMPOSE,
    )


def check_shares(
    gpus: tuple[Gpu, ...],
    shares: tuple[GpuShare, ...],
    models: Mapping[Way, Model],
    *,
    stack_runs: bool,
) -> Iterator[Row]:
    """Whether each server finds the memory that it is to have."""
    bad = [row for share in shares for row in _unusable(share, len(gpus))]
    yield from bad
    if bad:
        return
    for way in dict.fromkeys(share.way for share in shares):
        of_way = [share for share in shares if share.way == way]
        for at in dict.fromkeys(share.gpu for share in of_way if share.gpu is not None):
            on_it = [share for share in of_way if share.gpu == at]
            yield _room(way, at, gpus[at], on_it, stack_runs=stack_runs)
        yield from _weights(of_way, gpus, models.get(way))


def _unusable(share: GpuShare, count: int) -> Iterator[Row]:
    ways = (share.way,)
    if share.gpu is None:
        yield fault(
            "gpu_choice",
            f"{share.gpu_place} names no GPU of this machine",
            f"write a number from 0 to {count - 1}, or a UUID as nvidia-smi -L shows it",
            ways,
        )
    if share.share is None:
        text = f"{share.share_place} is no share of a GPU"
        yield fault("gpu_choice", text, "write a number above 0 and at most 1, such as 0.45", ways)


def _room(way: Way, at: int, gpu: Gpu, shares: list[GpuShare], *, stack_runs: bool) -> Row:
    """One GPU and all that are to share it."""
    name, ways = "gpu_memory", (way,)
    wanted = sum(share.share or 0 for share in shares)
    places = " and ".join(share.share_place for share in shares)
    if wanted > 1:
        text = f"GPU {at}: the servers want {wanted:.0%} of it together"
        return fault(name, text, f"at most 100 %: {places}", ways)
    if gpu.free_bytes is None or gpu.total_bytes is None:
        return warning(
            name,
            f"GPU {at}: its driver does not tell its memory (shared with the processor?)",
            "leave room for both servers in main memory",
            ways,
        )
    free, total = gpu.free_bytes, gpu.total_bytes
    text = f"GPU {at}: {readable_size(free)} of {readable_size(total)} free"
    if stack_runs:
        return ok(name, f"{text}, your servers running", ways)
    # vLLM does not start unless its whole share is free; the other server takes its as it goes
    first = max((s.share or 0 for s in shares if s.server == "paged"), default=0.0)
    if free < first * total:
        text = f"{text}; vLLM wants {readable_size(int(first * total))} of it"
        return fault(name, text, f"{_SEE_WHO}: {places}", ways)
    if free < wanted * total:
        text = f"{text}; the servers may want {readable_size(int(wanted * total))}"
        return warning(name, text, f"{_SEE_WHO}: {places}", ways)
    return ok(name, f"{text}; the servers want {wanted:.0%}", ways)


def _weights(shares: list[GpuShare], gpus: tuple[Gpu, ...], model: Model | None) -> Iterator[Row]:
    """A model whose weights alone are larger than a server's part."""
    if not isinstance(model, HeldModel) or model.weights_bytes is None:
        return
    for share in shares:
        total = gpus[share.gpu].total_bytes if share.gpu is not None else None
        part = int((share.share or 0) * total) if total else None
        if part is not None and model.weights_bytes > part:
            yield warning(
                "gpu_weights",
                f"{model.name} has {readable_size(model.weights_bytes)} of weights, and the "
                f"{share.server} server's part is {readable_size(part)}",
                f"a smaller or quantised model, or a larger part: {share.share_place}",
                (share.way,),
            )
