"""How much of which GPU each server is to have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.doctor.asked import Asked
from harness.doctor.facts import Gpu
from harness.doctor.rows import Way

_SERVERS = ("paged", "contiguous")
#: what the Compose files give each server when nothing is set
_HALF = "0.45"
#: vLLM's own default of --gpu-memory-utilization, as ``kvknee plan`` has it
_VLLM_SHARE = 0.92


@dataclass(frozen=True)
class GpuShare:
    """One server's part of one GPU; what is None was set to something that is none."""

    way: Way
    server: str
    #: position in the driver's list
    gpu: int | None
    #: of the GPU's whole memory, above 0 and at most 1
    share: float | None
    #: what sets the GPU, and what sets the share, in words
    gpu_place: str
    share_place: str


def gpu_shares(
    asked: Asked, gpus: tuple[Gpu, ...], environment: Mapping[str, str]
) -> tuple[GpuShare, ...]:
    """Every server that is to run on a GPU."""
    found: list[GpuShare] = []
    if "compose" in asked.ways and asked.compose_device == "gpu":
        found += _of_compose(asked, gpus, environment)
    if "local" in asked.ways and asked.local_device == "gpu":
        place = "kvknee up --gpu-memory-utilization"
        found.append(GpuShare("local", "paged", 0, _VLLM_SHARE, "CUDA_VISIBLE_DEVICES", place))
    return tuple(found)


def _of_compose(
    asked: Asked, gpus: tuple[Gpu, ...], environment: Mapping[str, str]
) -> Iterator[GpuShare]:
    if asked.files is None:
        return
    for server in _SERVERS:
        gpu = asked.files.setting(f"{server.upper()}_GPU", environment)
        share = asked.files.setting(f"{server.upper()}_GPU_MEMORY", environment)
        yield GpuShare(
            way="compose",
            server=server,
            gpu=_position(gpu.value or "0", gpus),
            share=_share(share.value or _HALF),
            gpu_place=gpu.place,
            share_place=share.place,
        )


def _position(text: str, gpus: tuple[Gpu, ...]) -> int | None:
    """Docker takes a GPU's number, or its UUID or the beginning of it."""
    if text.isascii() and text.isdigit() and int(text) < len(gpus):
        return int(text)
    fits = [
        at for at, gpu in enumerate(gpus) if text.startswith("GPU-") and gpu.uuid.startswith(text)
    ]
    return fits[0] if len(fits) == 1 else None


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
