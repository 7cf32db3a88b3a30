"""What the Compose files promise: ports, rights, tags, health, documented settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from servers.contiguous.cli import command
from servers.paged.launch import PagedSettings, paged_command, paged_environment
from tests.compose.files import CPU, EXAMPLE, GPU, ROOT, compose, documented, resolved, variables

STACKS = {"gpu": (GPU,), "cpu": (GPU, CPU)}
#: end by themselves, or are started by hand for one run
ONE_SHOT = {"model", "load", "load-worker"}
TAG = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+[a-z0-9.-]*")
OURS = {"kvknee-contiguous:cuda", "kvknee-contiguous:cpu", "kvknee-paged:cpu", "kvknee-load"}


@pytest.fixture(scope="module", params=sorted(STACKS))
def stack(request: pytest.FixtureRequest) -> dict[str, Any]:
    return resolved(*STACKS[request.param])


@pytest.fixture(scope="module")
def services(stack: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = stack["services"]
    return found


def test_both_files_hold_the_services_of_their_machine() -> None:
    everywhere = {"model", "paged", "contiguous", "prometheus", "grafana", "load", "load-worker"}
    assert set(resolved(GPU)["services"]) == everywhere | {"dcgm-exporter"}
    assert set(resolved(GPU, CPU)["services"]) == everywhere


def test_the_load_starts_only_when_its_profile_is_asked_for() -> None:
    plain = compose("config", "--services").stdout.split()
    asked = compose("--profile", "load", "config", "--services").stdout.split()
    assert set(asked) - set(plain) == {"load", "load-worker"}


def test_the_load_has_as_many_workers_as_are_asked_for() -> None:
    for settings, number in (({}, 1), ({"LOAD_WORKERS": "3"}, 3)):
        services = resolved(GPU, environment=settings)["services"]
        assert services["load"]["environment"]["LOCUST_EXPECT_WORKERS"] == str(number)
        worker = services["load-worker"]
        assert worker["scale"] == number
        assert worker["command"] == ["--worker", "--master-host=load"]
        # only the master is told what to ask, and of whom
        assert not [name for name in worker["environment"] if name.startswith("KVKNEE")]
        assert "ports" not in worker


def test_ports_are_published_on_loopback_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    published = [port["published"] for port in ports]
    assert len(set(published)) == len(published)
    assert {"8000", "8001", "9090", "3000"} <= set(published)
    assert not any("network_mode" in service for service in services.values())


def test_no_service_has_more_rights_than_it_needs(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert not {"cap_add", "privileged", "pid", "ipc", "devices"} & set(service), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        # its entry point writes into /etc
        assert service.get("read_only", False) == (name != "dcgm-exporter"), name


def test_logs_are_rotated(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name


def test_what_the_repository_mounts_is_there_and_read_only(services: dict[str, Any]) -> None:
    mounts = [m for s in services.values() for m in s.get("volumes", []) if m["type"] == "bind"]
    assert len(mounts) == 3
    for mount in mounts:
        assert mount["read_only"] is True
        # a folder made by Docker for a wrong path would hide the mistake
        assert not mount["bind"].get("create_host_path", False)
        assert Path(mount["source"]).is_relative_to(ROOT / "dashboards")
        assert Path(mount["source"]).is_dir()


def test_only_the_making_of_models_writes_them_and_knows_the_token(
    services: dict[str, Any],
) -> None:
    mounts = {
        name: volume
        for name, service in services.items()
        for volume in service.get("volumes", [])
        if volume["target"] == "/models"
    }
    assert set(mounts) == {"model", "paged", "contiguous"}
    assert {name for name, mount in mounts.items() if not mount.get("read_only")} == {"model"}
    for name, service in services.items():
        assert ("HF_TOKEN" in service.get("environment", {})) == (name == "model")
    for name in ("paged", "contiguous"):
        assert services[name]["environment"]["HF_HUB_OFFLINE"] == "1"


def test_every_lasting_service_has_a_health_check_with_time_to_start(
    services: dict[str, Any],
) -> None:
    assert {name for name, service in services.items() if "healthcheck" not in service} == ONE_SHOT
    for name, service in services.items():
        if name not in ONE_SHOT:
            assert "start_period" in service["healthcheck"], name
    for name in ("paged", "contiguous"):
        # a large model is loaded in minutes
        assert services[name]["healthcheck"]["start_period"] == "30m0s"


def test_what_is_needed_is_waited_for(services: dict[str, Any]) -> None:
    needs = {
        name: {other: what["condition"] for other, what in service.get("depends_on", {}).items()}
        for name, service in services.items()
    }
    made, healthy = "service_completed_successfully", "service_healthy"
    assert needs["paged"] == {"model": made}
    assert needs["grafana"] == {"prometheus": healthy}
    assert needs["load"] == {
        **dict.fromkeys(("paged", "contiguous", "prometheus"), healthy),
        "load-worker": "service_started",
    }
    on_gpu = "deploy" in services["paged"]
    assert needs["contiguous"] == {"model": made} | ({"paged": healthy} if on_gpu else {})


def test_every_image_of_others_is_pinned_and_names_no_registry(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "build" in service:
            assert service["image"] in OURS, name
            base = service["build"]["args"]["PYTHON_IMAGE"]
            assert TAG.fullmatch(base), base
        else:
            assert TAG.fullmatch(service["image"]), service["image"]
            assert "." not in service["image"].partition(":")[0]


def test_dockerfiles_leave_the_tag_to_the_compose_file_and_do_not_run_as_root() -> None:
    files = [ROOT / "scenarios/Dockerfile", *(ROOT / "servers").glob("*/Dockerfile*")]
    assert len(files) == 3
    for file in files:
        lines = file.read_text().splitlines()
        assert {x for x in lines if x.startswith("FROM ")} <= {
            "FROM ${PYTHON_IMAGE}",
            "FROM ${PYTHON_IMAGE} AS packages",
        }
        assert "ARG PYTHON_IMAGE" in lines
        assert "USER kvknee" in lines


def test_gpus_are_reserved_in_the_gpu_file_only() -> None:
    gpu, cpu = resolved(GPU)["services"], resolved(GPU, CPU)["services"]
    assert {n for n, s in gpu.items() if "deploy" in s} == {"paged", "contiguous", "dcgm-exporter"}
    assert not any("deploy" in service for service in cpu.values())
    text = str(cpu)
    assert "cuda" not in text.lower()
    assert "gpu" not in text.lower()
    assert "paged-cache" not in resolved(GPU, CPU)["volumes"]


def test_one_gpu_each_by_settings() -> None:
    settings = {
        "PAGED_GPU": "0",
        "CONTIGUOUS_GPU": "1",
        "PAGED_GPU_MEMORY": "0.9",
        "CONTIGUOUS_GPU_MEMORY": "0.8",
    }
    services = resolved(GPU, environment=settings)["services"]

    def devices(name: str) -> Any:
        return services[name]["deploy"]["resources"]["reservations"]["devices"]

    assert devices("paged")[0]["device_ids"] == ["0"]
    assert devices("contiguous")[0]["device_ids"] == ["1"]
    assert "--gpu-memory-utilization=0.9" in services["paged"]["command"]
    fraction = services["contiguous"]["environment"]["PYTORCH_CUDA_ALLOC_CONF"]
    assert fraction == "per_process_memory_fraction:0.8"


@pytest.mark.parametrize("machine", sorted(STACKS))
def test_vllm_is_launched_as_by_kvknee_up(machine: str) -> None:
    """The flags of ``servers/paged/launch.py``, in YAML because vLLM's image lacks our code."""
    service = resolved(*STACKS[machine])["services"]["paged"]
    on_cpu = machine == "cpu"
    model = "tiny" if on_cpu else "Qwen/Qwen2.5-1.5B-Instruct"
    settings = PagedSettings(
        model=f"/models/{model}",
        served_model_name=model,
        host="0.0.0.0",
        port=8000,
        device="cpu" if on_cpu else "gpu",
        max_model_len=2048 if on_cpu else 4096,
        max_num_seqs=128,
        max_num_batched_tokens=2048 if on_cpu else None,
        block_size=128 if on_cpu else None,
        kv_budget_bytes=16 * 2**20 if on_cpu else 4 * 2**30,
        gpu_memory_utilization=None if on_cpu else 0.45,
        threads=1 if on_cpu else None,
        local_files_only=True,
    )
    program = list(paged_command(settings, "python3"))
    at = program.index("-m")
    assert service["entrypoint"] == ["python3", *program[at : at + 2]]
    given = [word for flag in service["command"] for word in flag.split("=", 1)]
    assert given == program[at + 2 :]
    assert paged_environment(settings, {}).items() <= service["environment"].items()


@pytest.mark.parametrize("machine", STACKS)
def test_the_contiguous_server_gets_every_mode_that_has_a_setting(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"CACHE": "static", "RESERVE": "exact", "BATCHING": "static", "BATCH_SIZE": "4"}
    asked = {}
    for name, environment in (("default", {}), ("chosen", chosen)):
        stack = resolved(*STACKS[machine], environment=environment)
        service = stack["services"]["contiguous"]
        monkeypatch.setenv("KVKNEE_BATCH_SIZE", service["environment"]["KVKNEE_BATCH_SIZE"])
        asked[name] = command.make_context("server", list(service["command"])).params
    names = ("cache", "reserve", "batching", "batch_size")
    assert [asked["default"][name] for name in names] == ["static", "max", "continuous", None]
    assert [asked["chosen"][name] for name in names] == ["static", "exact", "static", 4]


def test_every_setting_is_documented_with_its_default() -> None:
    known, gpu, cpu = documented(), variables(GPU), variables(CPU)
    assert set(known) == set(gpu) | set(cpu)
    for name, entry in known.items():
        if name in gpu:
            assert entry.default == gpu[name], name
        if name in cpu:
            assert (entry.cpu_default or entry.default) == cpu[name], name
        if entry.cpu_default is not None:
            assert entry.cpu_default != entry.default, name


def test_every_setting_is_explained_and_the_example_is_all_comment() -> None:
    assert [name for name, entry in documented().items() if not entry.explained] == []
    assert all(line == "" or line.startswith("#") for line in EXAMPLE.read_text().splitlines())


def test_the_example_as_it_is_changes_nothing(tmp_path: Path) -> None:
    """All its lines switched on give the GPU file's own defaults, inline comments and all."""
    settings = tmp_path / "env"
    settings.write_text(re.sub(r"^#([A-Z])", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))
    assert resolved(GPU, env_file=settings) == resolved(GPU)


def test_grafana_has_no_password_that_can_be_guessed(services: dict[str, Any]) -> None:
    grafana = services["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD"] == ""
    assert "/dev/urandom" in grafana["entrypoint"][-1]
    assert grafana["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    given = resolved(GPU, environment={"GRAFANA_ADMIN_PASSWORD": "s3cret"})["services"]["grafana"]
    assert given["environment"]["GF_SECURITY_ADMIN_PASSWORD"] == "s3cret"


def test_dcgm_reads_as_often_as_prometheus_scrapes() -> None:
    environment = resolved(GPU)["services"]["dcgm-exporter"]["environment"]
    assert environment["DCGM_EXPORTER_INTERVAL"] == "1000"


def test_prometheus_reaches_a_harness_on_this_machine(services: dict[str, Any]) -> None:
    assert services["prometheus"]["extra_hosts"] == ["host.docker.internal=host-gateway"]


def test_results_and_models_may_be_folders_of_this_machine(tmp_path: Path) -> None:
    settings = {"MODELS": str(tmp_path / "m"), "RESULTS": str(tmp_path / "r")}
    services = resolved(GPU, environment=settings)["services"]
    assert services["load"]["volumes"][0]["source"] == str(tmp_path / "r")
    assert services["model"]["volumes"][0]["type"] == "bind"


def test_the_build_context_holds_what_the_dockerfiles_copy_and_little_else() -> None:
    wanted = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = set()
    for file in (ROOT / "scenarios/Dockerfile", *(ROOT / "servers").glob("*/Dockerfile*")):
        for line in file.read_text().splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                copied |= set(line.split()[1:-1])
    for path in copied:
        assert any(path == name or path.startswith(name + "/") for name in wanted), path
        assert (ROOT / path).exists(), path
    assert all(any(c == name or c.startswith(name + "/") for c in copied) for name in wanted)


def test_the_servers_image_installs_what_the_servers_extra_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {
        re.split(r"[>=<\[]", entry)[0] for entry in project["optional-dependencies"]["servers"]
    }
    listed = {
        re.split(r"\[", line)[0]
        for line in (ROOT / "servers/contiguous/requirements.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    assert extra <= listed
    pinned = (ROOT / "servers/paged/requirements-cpu.txt").read_text().lower()
    for name in listed:
        assert re.search(rf"^{name}==", pinned, re.MULTILINE), f"{name} has no pinned version"
