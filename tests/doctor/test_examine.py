"""The whole question on machines that lack one thing each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.doctor.facts import (
    Disk,
    Limits,
    Memory,
    PortUse,
    Unknown,
)
from harness.doctor.probes import Probes
from harness.errors import OptionError, UsageError
from tests.doctor.well_machine import (
    CONFIG,
    GIB,
    GPU_DEVICES,
    INFO,
    clone,
    commands,
    faults,
    look,
    row_of,
    rows_of,
    said,
    warnings,
    well,
    with_gpu,
)

MIB = 2**20


def test_on_a_well_machine_nothing_blocks(tmp_path: Path) -> None:
    report = look(clone(tmp_path), well())
    assert faults(report) == []
    assert warnings(report) == []
    assert report.exit_code == 0
    assert report.asked.ways == ("compose", "local")
    assert report.blocked_by("compose") == report.blocked_by("local") == ()
    assert (report.asked.compose_device, report.asked.local_device) == ("cpu", "cpu")


def gpu_config() -> dict[str, Any]:
    services = {**CONFIG["services"]}
    services["paged"] = {**services["paged"], "deploy": GPU_DEVICES}
    return {**CONFIG, "services": services}


def test_on_a_well_gpu_machine_the_gpu_file_is_chosen(tmp_path: Path) -> None:
    run = commands(config=said(json.dumps(gpu_config())))
    report = look(clone(tmp_path), with_gpu(run=run))
    assert faults(report) == []
    assert report.asked.files is not None
    assert [path.name for path in report.asked.files.files] == ["docker-compose.yml"]
    assert row_of(report, "gpu_driver").found == "NVIDIA H200; driver 575.57.08"
    # 0.45 of 143,771 MiB is 64,697 MiB, 143,167 MiB are free
    assert [row.ways for row in rows_of(report, "gpu_memory")] == [("compose",), ("local",)]


MACHINE: list[tuple[dict[str, Any], str, str]] = [
    ({"python": (3, 10, 4)}, "python", "Python 3.10.4 is too old"),
    ({"memory": lambda: Memory(4 * GIB, 2 * GIB)}, "memory", "2 GiB of 4 GiB free"),
    ({"open_files": lambda: Limits(100, 200)}, "open_files", "no more than 200 are allowed"),
    (
        {"disk": lambda path: Disk(path, 10 * MIB, 10**6, writable=True)},
        "disk_results",
        "10 MiB free",
    ),
    ({"disk": lambda path: Disk(path, 9 * GIB, 0, writable=True)}, "disk_results", "no inodes"),
    (
        {"disk": lambda path: Disk(path, 9 * GIB, None, writable=False)},
        "disk_results",
        "cannot be written",
    ),
    ({"installed": lambda name: name != "vllm"}, "engines", "not installed in this Python: vllm"),
    ({"library": lambda name: False}, "libnuma", "libnuma.so.1 is missing"),
    ({"shm_bytes": lambda: 64 * MIB}, "shm", "64 MiB free in /dev/shm"),
    ({"which": lambda name: None}, "docker", "Docker is not installed"),
    ({"run": commands(info=said("", 1, "x"))}, "docker_daemon", "cannot be used: x"),
    ({"run": commands(version=said("", 1, "unknown command"))}, "compose", "not installed"),
    ({"run": commands(version=said("2.24.3"))}, "compose", "Compose 2.24.3 is too old"),
    ({"run": commands(config=said("", 15, "no such service"))}, "compose_config", "no such"),
    (
        {"port": lambda number: PortUse("taken" if number == 8001 else "free")},
        "port_contiguous",
        "8001 is taken by another user's process, or a container",
    ),
    (
        {"port": lambda number: PortUse("denied" if number == 3000 else "free")},
        "port_grafana",
        "3000 needs more rights",
    ),
]


@pytest.mark.parametrize(("change", "name", "words"), MACHINE, ids=[name for _, name, _ in MACHINE])
def test_each_lack_is_named_with_what_to_do(
    change: dict[str, Any], name: str, words: str, tmp_path: Path
) -> None:
    report = look(clone(tmp_path), well(**change))
    row = next(row for row in report.rows if row.name == name)
    assert row.status.value == "fault"
    assert words in row.found
    assert row.remedy
    assert name in report.blocked_by(row.ways[0])
    assert report.exit_code == 1


def test_the_limits_themselves_are_no_fault(tmp_path: Path) -> None:
    """One byte or one file less is: memory 3 GiB, shm 128 MiB, 32 + 256 open files."""
    edge = {
        "memory": lambda: Memory(8 * GIB, 3 * GIB),
        "shm_bytes": lambda: 128 * MIB,
        "open_files": lambda: Limits(288, 288),
        "disk": lambda path: Disk(path, 8 * GIB, 1, writable=True),
    }
    run = commands(images=said(""))
    assert faults(look(clone(tmp_path), well(run=run, **edge))) == []
    below: dict[str, Any] = {
        "memory": lambda: Memory(8 * GIB, 3 * GIB - 1),
        "shm_bytes": lambda: 128 * MIB - 1,
        "open_files": lambda: Limits(287, 287),
        "disk": lambda path: Disk(path, 8 * GIB - 1, 1, writable=True),
    }
    assert faults(look(tmp_path, well(run=run, **below))) == [
        "memory",
        "open_files",
        "disk_docker",
        "shm",
    ]


def test_images_that_are_here_take_no_more_disk(tmp_path: Path) -> None:
    """1 GiB is enough for what the stack writes, 8 GiB for the images of the CPU."""
    probes = well(disk=lambda path: Disk(path, 2 * GIB, 1, writable=True))
    assert faults(look(clone(tmp_path), probes)) == []
    probes = replace(probes, run=commands(images=said("prom/prometheus:v3\n")))
    report = look(tmp_path, probes)
    assert faults(report) == ["disk_docker"]
    assert "take about 8 GiB" in row_of(report, "disk_docker").found


def test_a_soft_limit_that_a_run_raises_itself_is_fine(tmp_path: Path) -> None:
    probes = well(open_files=lambda: Limits(256, 4096))
    report = look(clone(tmp_path), probes, levels="1,512")
    assert warnings(report) == []
    # 512 requests and 256 for the rest
    assert row_of(report, "open_files").found == (
        "256 open files; the largest level, 512, needs 768; a run raises its limit, up to 4096"
    )
    assert report.exit_code == 0


def test_the_levels_of_the_environment_count(tmp_path: Path) -> None:
    probes = well(environment={"KVKNEE_LEVELS": "8,1000"})
    assert look(clone(tmp_path), probes).asked.largest_level == 1000
    with pytest.raises(OptionError, match="--levels: '8,1' is not valid"):
        look(tmp_path, probes, levels="8,1")


def test_without_docker_the_local_way_is_open(tmp_path: Path) -> None:
    report = look(clone(tmp_path), well(which=lambda name: None))
    assert report.blocked_by("compose") == ("docker",)
    assert report.blocked_by("local") == ()
    assert report.exit_code == 1
    only = look(tmp_path, well(which=lambda name: None), local=True)
    assert only.asked.ways == ("local",)
    assert only.exit_code == 0
    assert rows_of(only, "docker") == rows_of(only, "port_grafana") == []


def test_asked_for_compose_the_local_engines_do_not_matter(tmp_path: Path) -> None:
    files = (clone(tmp_path) / "docker-compose.yml", tmp_path / "docker-compose.cpu.yml")
    report = look(tmp_path, well(installed=lambda name: False), compose=files)
    assert report.asked.ways == ("compose",)
    assert report.exit_code == 0
    assert rows_of(report, "engines") == rows_of(report, "model") == []


def test_outside_a_clone_compose_is_left_out_and_said_so(tmp_path: Path) -> None:
    report = look(tmp_path, well())
    assert report.asked.ways == ("local",)
    assert row_of(report, "compose_files").found.startswith("no docker-compose.yml in this folder")
    assert report.exit_code == 0


def test_a_named_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--compose: .*expected a Compose file that exists"):
        look(tmp_path, well(), compose=(tmp_path / "compsoe.yml",))
    with pytest.raises(UsageError, match="no text file"):
        (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00")
        look(tmp_path, well(), compose=(tmp_path / "binary.yml",))


def test_compose_file_of_the_shell_or_of_env_chooses_the_files(tmp_path: Path) -> None:
    clone(tmp_path, env="COMPOSE_FILE=docker-compose.yml:mine.yml\n")
    report = look(tmp_path, well())
    assert row_of(report, "compose_files").found.startswith("not there:")
    assert "mine.yml (asked for by COMPOSE_FILE)" in row_of(report, "compose_files").found
    probes = well(environment={"COMPOSE_FILE": "docker-compose.yml:docker-compose.cpu.yml"})
    assert faults(look(tmp_path, probes)) == []


def test_a_gpu_file_on_a_machine_without_one(tmp_path: Path) -> None:
    run = commands(config=said(json.dumps(gpu_config())))
    report = look(clone(tmp_path), well(run=run), compose=(tmp_path / "docker-compose.yml",))
    row = row_of(report, "gpu_driver")
    assert row.found == (
        "no NVIDIA GPU: nvidia-smi is not installed, so there is no NVIDIA driver here"
    )
    assert "kvknee doctor --cpu" in row.remedy
    assert report.blocked_by("compose")[-1] == "gpu_driver"


def test_the_gpu_file_with_cpu_asked_names_the_override(tmp_path: Path) -> None:
    run = commands(config=said(json.dumps(gpu_config())))
    files = (clone(tmp_path) / "docker-compose.yml",)
    report = look(tmp_path, well(run=run), compose=files, device="cpu")
    assert row_of(report, "compose_files").remedy.endswith("-f docker-compose.cpu.yml")
    assert faults(report) == ["compose_files"]


def test_the_cpu_files_with_gpu_asked(tmp_path: Path) -> None:
    files = (clone(tmp_path) / "docker-compose.yml", tmp_path / "docker-compose.cpu.yml")
    report = look(tmp_path, with_gpu(), compose=files, device="gpu")
    assert row_of(report, "compose_files").remedy == "leave docker-compose.cpu.yml away"


def test_what_cannot_be_read_is_a_warning_and_nothing_more(tmp_path: Path) -> None:
    def refuse(*_: object) -> Any:
        raise PermissionError(13, "Permission denied")

    probes = well(memory=refuse, shm_bytes=refuse, open_files=refuse, disk=refuse, port=refuse)
    report = look(clone(tmp_path), probes)
    assert faults(report) == []
    assert {"memory", "open_files", "disk_results", "shm", "port_paged"} <= set(warnings(report))
    assert "Permission denied" in row_of(report, "memory").found


def test_a_daemon_that_hangs_is_asked_once(tmp_path: Path) -> None:
    run = commands(info=Unknown("docker gave no answer in 10 s"))
    report = look(clone(tmp_path), well(run=run))
    assert row_of(report, "docker_daemon").found.endswith("docker gave no answer in 10 s")
    assert [text for text in run.asked if text.startswith(("docker ps", "docker image"))] == []


def secret_machine(tmp_path: Path) -> Probes:
    """A key wherever a message could repeat it."""
    error = 'services.grafana: "hunter2-secret" and hf_0123456789 and Tr0ub4dor are wrong'
    return well(
        environment={"OPENAI_API_KEY": "sk-abcdef", "HF_TOKEN": "hf_0123456789"},
        run=commands(config=said("", 15, error), ps=said("sk-abcdef\t\t0.0.0.0:3000->1/tcp")),
        port=lambda number: PortUse("taken"),
        served_model=lambda url: "hf_0123456789",
    )


def test_no_secret_and_no_value_of_env_is_shown(tmp_path: Path) -> None:
    clone(tmp_path, env="GRAFANA_ADMIN_PASSWORD='hunter2-secret'\nREMARK=Tr0ub4dor\n")
    report = look(tmp_path, secret_machine(tmp_path))
    shown = " ".join(f"{row.found} {row.remedy}" for row in report.rows)
    for secret in ("hunter2-secret", "hf_0123456789", "Tr0ub4dor", "sk-abcdef"):
        assert secret not in shown
    assert 'services.grafana: "***" and *** and *** are wrong' in shown
    assert "the container ***" in shown


def test_names_in_env_that_nothing_uses(tmp_path: Path) -> None:
    env = "PAGED_PROT=8100\nCOMPOSE_PROFILES=load\nGRAFANA_ADMIN_PASSWORD=x\nWHATEVER=1\nno word\n"
    report = look(clone(tmp_path, env=env), well())
    rows = rows_of(report, "env_file")
    assert [(row.status.value, row.remedy) for row in rows] == [
        ("fault", "correct the line, or put a # before it"),
        ("warning", "did you mean PAGED_PORT?"),
        ("warning", "see .env.example for the names that they use"),
    ]
    assert rows[0].found.endswith("no NAME=value in line 5")
    assert "PAGED_PROT (line 1)" in rows[1].found


def test_docker_elsewhere_tells_nothing_of_this_disk(tmp_path: Path) -> None:
    probes = well(environment={"DOCKER_HOST": "ssh://me@far"})
    assert "cannot be seen from here" in row_of(look(clone(tmp_path), probes), "disk_docker").found
    info = said(json.dumps({**INFO, "DockerRootDir": "/no/such/folder"}))
    report = look(tmp_path, well(run=commands(info=info)))
    assert "/no/such/folder cannot be seen from here" in row_of(report, "disk_docker").found
