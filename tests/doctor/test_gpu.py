"""GPU, driver, Docker's runtime, and who is to have how much of which GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.doctor.docker_facts import NVIDIA_HOOK
from harness.doctor.examine import Report
from harness.doctor.facts import Gpu, LocalStack, Unknown
from harness.doctor.gpu_facts import parse_gpus, read_gpus
from tests.doctor.well_machine import (
    CONFIG,
    GPU_DEVICES,
    GPU_LINE,
    HUB,
    INFO,
    clone,
    commands,
    faults,
    look,
    row_of,
    rows_of,
    said,
    warnings,
    with_gpu,
)

MIB = 2**20
GPU_CONFIG = {
    **CONFIG,
    "services": {"paged": {"image": "grafana/grafana:v12", "deploy": GPU_DEVICES}},
}


def test_nvidia_smi_lists_names_with_commas_and_memory_in_mib() -> None:
    text = f'{GPU_LINE}\n"A, B", 550.1, GPU-2, [N/A], [N/A]\n'
    assert parse_gpus(text) == (
        Gpu("NVIDIA H200", "575.57.08", "GPU-1f2e3d4c", 143_771 * MIB, 143_167 * MIB),
        Gpu("A, B", "550.1", "GPU-2", None, None),
    )
    assert parse_gpus("") == ()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            said("NVIDIA-SMI has failed because it couldn't communicate\n", 9),
            "couldn't communicate",
        ),
        (said("No devices were found\n", 6), "No devices were found"),
        (said(""), "no GPU listed"),
        (Unknown("nvidia-smi gave no answer in 10 s"), "no answer in 10 s"),
    ],
)
def test_a_driver_that_shows_no_gpu_says_why(answer: Any, why: str) -> None:
    gpus = read_gpus(lambda name: f"/usr/bin/{name}", commands(gpus=answer))
    assert isinstance(gpus, str)
    assert why in gpus


def gpu_report(folder: Path, env: str = "", **changes: Any) -> Report:
    """The GPU file alone, as `--compose docker-compose.yml` asks."""
    given: dict[str, Any] = {"config": said(json.dumps(GPU_CONFIG))}
    answers = {key: changes.pop(key) for key in ("info", "gpus", "hub") if key in changes}
    probes = with_gpu(run=commands(**(given | answers)), **changes)
    return look(clone(folder, env=env), probes, compose=(folder / "docker-compose.yml",))


def info(**changes: Any) -> Any:
    return said(json.dumps({**INFO, **changes}))


def without_hook(name: str) -> str | None:
    return None if name == NVIDIA_HOOK else f"/usr/bin/{name}"


def test_docker_without_nvidias_runtime(tmp_path: Path) -> None:
    bare = info(Runtimes={"runc": {}})
    report = gpu_report(tmp_path, info=bare, which=without_hook)
    assert faults(report) == ["gpu_runtime"]
    assert "nvidia-ctk runtime configure --runtime=docker" in row_of(report, "gpu_runtime").remedy
    assert faults(gpu_report(tmp_path, info=bare)) == []
    devices = info(Runtimes={}, DiscoveredDevices=[{"Source": "cdi", "ID": "nvidia.com/gpu=0"}])
    assert faults(gpu_report(tmp_path, info=devices, which=without_hook)) == []
    far = {"DOCKER_HOST": "tcp://far:2376"}
    report = gpu_report(tmp_path, info=bare, which=without_hook, environment=far)
    assert "gpu_runtime" in warnings(report)


def line(total_mib: int, free_mib: int, uuid: str = "GPU-aa") -> str:
    return f"Card, 550.1, {uuid}, {total_mib}, {free_mib}\n"


def test_vllms_share_must_be_free(tmp_path: Path) -> None:
    """0.45 x 1,000 MiB = 450 MiB; both servers want 900 MiB."""
    full = gpu_report(tmp_path, gpus=said(line(1000, 449)), hub=small_model())
    assert faults(full) == ["gpu_memory"]
    assert "vLLM wants 450 MiB of it" in row_of(full, "gpu_memory").found
    assert "PAGED_GPU_MEMORY in .env" in row_of(full, "gpu_memory").remedy
    tight = gpu_report(tmp_path, gpus=said(line(1000, 450)), hub=small_model())
    assert (faults(tight), warnings(tight)) == ([], ["gpu_memory"])
    assert "the servers may want 900 MiB" in row_of(tight, "gpu_memory").found
    free = gpu_report(tmp_path, gpus=said(line(1000, 900)), hub=small_model())
    assert (faults(free), warnings(free)) == ([], [])


def small_model() -> Any:
    return said(json.dumps({**HUB, "weights_bytes": 100 * MIB}))


def test_a_stack_that_runs_holds_the_memory_itself(tmp_path: Path) -> None:
    gpus, stack = said(line(1000, 10)), LocalStack({8000: "paged"})
    report = gpu_report(tmp_path, gpus=gpus, hub=small_model(), local_stack=lambda home: stack)
    assert row_of(report, "gpu_memory").found.endswith("your servers running")


def test_shares_of_one_gpu_are_added_and_of_two_are_not(tmp_path: Path) -> None:
    two = said(line(1000, 990) + line(1000, 990, "GPU-bb"))
    shares = "PAGED_GPU_MEMORY=0.9\nCONTIGUOUS_GPU_MEMORY=0.9\n"
    report = gpu_report(tmp_path, shares, gpus=two, hub=small_model())
    assert row_of(report, "gpu_memory").found == "GPU 0: the servers want 180% of it together"
    report = gpu_report(tmp_path, shares + "CONTIGUOUS_GPU=GPU-b\n", gpus=two, hub=small_model())
    assert [row.found for row in rows_of(report, "gpu_memory")] == [
        "GPU 0: 990 MiB of 1000 MiB free; the servers want 90%",
        "GPU 1: 990 MiB of 1000 MiB free; the servers want 90%",
    ]


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ("PAGED_GPU=1\n", "PAGED_GPU in .env (line 1) names no GPU of this machine"),
        ("\nCONTIGUOUS_GPU=GPU-zz\n", "CONTIGUOUS_GPU in .env (line 2) names no GPU"),
        ("PAGED_GPU_MEMORY=1.2\n", "PAGED_GPU_MEMORY in .env (line 1) is no share of a GPU"),
        ("PAGED_GPU_MEMORY=half\n", "PAGED_GPU_MEMORY in .env (line 1) is no share of a GPU"),
    ],
)
def test_a_gpu_or_share_that_is_none(env: str, found: str, tmp_path: Path) -> None:
    report = gpu_report(tmp_path, env, gpus=said(line(1000, 990)))
    assert row_of(report, "gpu_choice").found.startswith(found)
    assert row_of(report, "gpu_choice").status.value == "fault"


def test_weights_larger_than_a_servers_part(tmp_path: Path) -> None:
    """100 MiB of weights; the paged server has 450 MiB, the contiguous one 50."""
    gpus = said(line(1000, 990))
    report = gpu_report(tmp_path, "CONTIGUOUS_GPU_MEMORY=0.05\n", gpus=gpus, hub=small_model())
    row = row_of(report, "gpu_weights")
    assert row.found == (
        "org/large has 100 MiB of weights, and the contiguous server's part is 50 MiB"
    )


def test_memory_that_the_driver_does_not_tell(tmp_path: Path) -> None:
    report = gpu_report(tmp_path, gpus=said("GB10, 580.1, GPU-cc, [N/A], [N/A]\n"))
    assert faults(report) == []
    assert "does not tell its memory" in row_of(report, "gpu_memory").found


def test_kvknee_up_on_a_gpu_needs_a_vllm_for_it(tmp_path: Path) -> None:
    probes = with_gpu(vllm_with_gpu=lambda: False)
    report = look(tmp_path, probes, local=True, device="gpu")
    assert faults(report) == ["gpu_engine"]
    auto = look(tmp_path, probes, local=True)
    assert auto.asked.local_device == "cpu"
    assert (faults(auto), rows_of(auto, "gpu_driver")) == ([], [])
