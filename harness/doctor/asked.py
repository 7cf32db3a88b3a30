"""What ``kvknee doctor`` is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.doctor.compose_files import ComposeFiles
from harness.doctor.facts import Device
from harness.doctor.rows import Way
from harness.load.settings import MetricsAddress


@dataclass(frozen=True)
class Asked:
    """The question, every default filled in."""

    ways: tuple[Way, ...]
    #: None: there are no Compose files here, and none were named
    files: ComposeFiles | None
    #: Compose was not left out on purpose
    files_lacking: bool
    #: where the servers of each way run
    compose_device: Device
    local_device: Device
    #: --gpu was given: a GPU is to be there
    gpu_demanded: bool
    #: the model of ``kvknee up``; the Compose stack's comes from its files
    local_model: str
    compose_model: str | None
    home: Path
    results: Path
    #: concurrent requests at the largest level
    largest_level: int
    #: ``auto``, ``none`` or an address
    prometheus_url: str
    #: where a run would serve its live metrics
    metrics: MetricsAddress
