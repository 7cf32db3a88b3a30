"""Device memory from NVIDIA's DCGM exporter, joined to backends by GPU UUID.

``DCGM_FI_DEV_FB_USED`` is the frame buffer in use on one GPU in MiB (2^20 bytes), by
whoever uses it, the driver's own share included on some drivers. A GPU that two backends
share gives one total for both and no figure for either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness.errors import OptionError
from harness.manifest import BackendInfo, Manifest
from harness.observe.exposition import Page
from harness.observe.pages import ObservedPages, observed_pages
from harness.observe.series import Series, SharedDevice
from harness.rundir import RunDir

#: the scraper's and Prometheus' name for the exporter: no backend may be called so
TARGET: Final = "dcgm"
FB_USED: Final = "DCGM_FI_DEV_FB_USED"
MIB: Final = 2**20


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Memory in use on the GPUs of a run's backends."""

    #: only backends that have their GPUs to themselves
    per_backend: Mapping[str, Series]
    shared: tuple[SharedDevice, ...]
    #: backend -> what is wrong with its GPU's figures
    faults: Mapping[str, str]

    def shared_by(self, backend: str) -> SharedDevice | None:
        """The GPUs that this backend has together with others; None when it shares none."""
        return next((device for device in self.shared if backend in device.backends), None)


def parse_gpus(text: str, backends: Sequence[str], option: str = "--gpu") -> dict[str, list[str]]:
    """Read ``paged=GPU-1+GPU-2,contiguous=GPU-3``; raises OptionError.

    A backend on several GPUs joins their UUIDs with ``+``. Backends that are not named
    have no entry.
    """
    expected = f"backend=UUID with a backend of {', '.join(backends)}, such as {backends[0]}=GPU-…"
    gpus: dict[str, list[str]] = {}
    for part in text.split(","):
        name, equals, uuids = part.strip().partition("=")
        found = [uuid.strip() for uuid in uuids.split("+")]
        if not equals or name not in backends or name in gpus or not all(found):
            raise OptionError(option, text, expected)
        gpus[name] = list(dict.fromkeys(found))
    return gpus


def gpu_used_bytes(page: Page) -> dict[str, float]:
    """GPU UUID -> bytes in use, of one page of the exporter.

    A GPU split into instances (MIG) has a sample for each, which add up; one that
    several pods share has the same sample once per pod, which counts once.
    """
    by_instance: dict[tuple[str, str], float] = {}
    for sample in page.get(FB_USED, ()):
        uuid = sample.labels.get("UUID")
        if uuid:
            key = (uuid, sample.labels.get("GPU_I_ID", ""))
            by_instance[key] = max(by_instance.get(key, 0.0), sample.value * MIB)
    totals: dict[str, float] = {}
    for (uuid, _), used in by_instance.items():
        totals[uuid] = totals.get(uuid, 0.0) + used
    return totals


def device_memory(run: RunDir, manifest: Manifest) -> DeviceMemory:
    """Device memory of all backends that name their GPUs; empty when none does."""
    owners = [info for info in manifest.backends if info.gpu_uuids]
    if not owners:
        return DeviceMemory({}, (), {})
    observed = observed_pages(run, manifest, TARGET, {FB_USED})
    samples = [(t_s, gpu_used_bytes(page)) for t_s, page in observed.pages]
    per_backend: dict[str, Series] = {}
    shared: list[SharedDevice] = []
    faults: dict[str, str] = {}
    for names, uuids in _groups(owners):
        used = _sum_over(uuids, samples)
        if not len(used):
            faults.update(dict.fromkeys(names, _why_nothing(uuids, samples, observed)))
        elif len(names) > 1:
            shared.append(SharedDevice(uuids, names, used))
        else:
            per_backend[names[0]] = used
    return DeviceMemory(per_backend, tuple(shared), faults)


def _groups(owners: Sequence[BackendInfo]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(backends, GPUs) such that no GPU is in two groups."""
    groups: list[tuple[list[str], set[str]]] = []
    for info in owners:
        names, uuids = [info.name], set(info.gpu_uuids)
        for other in [group for group in groups if group[1] & uuids]:
            names = other[0] + names
            uuids |= other[1]
            groups.remove(other)
        groups.append((names, uuids))
    return [(tuple(names), tuple(sorted(uuids))) for names, uuids in groups]


def _sum_over(uuids: Sequence[str], samples: Sequence[tuple[float, dict[str, float]]]) -> Series:
    """The sum over GPUs where all of them were seen: part of a sum would look like a fall."""
    return Series.of(
        (t_s, sum(used[uuid] for uuid in uuids))
        for t_s, used in samples
        if all(uuid in used for uuid in uuids)
    )


def _why_nothing(
    uuids: Sequence[str],
    samples: Sequence[tuple[float, dict[str, float]]],
    observed: ObservedPages,
) -> str:
    seen = sorted({uuid for _, used in samples for uuid in used})
    lost = [uuid for uuid in uuids if uuid not in seen]
    if seen and lost:
        return f"DCGM shows no GPU {', '.join(lost)}; it shows {', '.join(seen)}"
    reason = "; ".join(observed.reasons) or "it was not scraped"
    return f"DCGM gave no {FB_USED}: {reason}"
