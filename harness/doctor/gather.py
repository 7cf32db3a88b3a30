"""Everything that the checks need to know, read once and in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.doctor.asked import Asked
from harness.doctor.bounded import all_within
from harness.doctor.compose_files import ComposeFiles
from harness.doctor.docker_facts import read_docker
from harness.doctor.facts import (
    Daemon,
    Disk,
    Docker,
    Gpu,
    LocalStack,
    Machine,
    Model,
    PortUse,
    Prometheus,
    Server,
    Unknown,
)
from harness.doctor.model_facts import read_held, read_of_compose
from harness.doctor.needed_ports import NeededPort, needed_ports
from harness.doctor.probes import Probes
from harness.load.settings import DEFAULT_PROMETHEUS, PROMETHEUS_AUTO, PROMETHEUS_OFF
from harness.observe.prometheus_api import PrometheusFaultError, without_credentials
from harness.stack.ports import HOST

#: five commands of Docker's, each with a limit of its own, are the longest of the reads
READ_S = 60.0
SERVERS = ("paged", "contiguous")
LOCAL_MODULES = ("vllm", "torch", "transformers", "fastapi")


@dataclass(frozen=True)
class Facts:
    """What was found."""

    machine: Machine
    docker: Docker | Unknown
    #: the GPUs, or why there are none
    gpus: tuple[Gpu, ...] | str | Unknown
    local_model: Model
    compose_model: Model | None
    local_stack: LocalStack
    ports: tuple[NeededPort, ...] = ()
    uses: Mapping[int, PortUse | Unknown] = field(default_factory=dict)
    #: who -> the servers of ours whose ports are in use
    servers: Mapping[str, Server] = field(default_factory=dict)
    #: foreign servers on ports that we need: port -> the model that they serve
    foreign_models: Mapping[int, str] = field(default_factory=dict)
    #: under Docker's images; None: not on this machine, or not asked
    docker_disk: Disk | Unknown | None = None
    #: None: not asked, or nothing listens there
    prometheus: Prometheus | Unknown | None = None


def gather(asked: Asked, gpus: tuple[Gpu, ...] | str | Unknown, probes: Probes) -> Facts:
    """Read the machine."""
    first = all_within(READ_S, _first_reads(asked, probes))
    docker = first["docker"]
    known = docker if isinstance(docker, Docker) else Docker(None)
    stack = first["local_stack"]
    if isinstance(stack, Unknown):
        stack = LocalStack(problem=stack.reason)
    ports = needed_ports(asked, known, probes.environment)
    numbers = sorted({port.number for port in ports if port.number is not None})
    uses = all_within(READ_S, {str(number): _reader(probes.port, number) for number in numbers})
    taken = {n for n in numbers if uses[str(n)] != PortUse("free")}
    owned = own_ports(asked, known, stack, ports)
    reads = _second_reads(asked, probes, ports, taken, owned)
    root = known.daemon.root if isinstance(known.daemon, Daemon) else None
    if root and Path(root).exists() and not known.remote:
        reads["docker_disk"] = _reader(probes.disk, Path(root))
    second = all_within(READ_S, reads)
    return Facts(
        machine=_machine(probes, first),
        docker=docker,
        gpus=gpus,
        local_model=first["local_model"],
        compose_model=first.get("compose_model"),
        local_stack=stack,
        ports=ports,
        uses={number: uses[str(number)] for number in numbers},
        servers=second["servers"] if isinstance(second["servers"], dict) else {},
        foreign_models=second["foreign"] if isinstance(second["foreign"], dict) else {},
        docker_disk=second.get("docker_disk"),
        prometheus=second["prometheus"],
    )


def _reader(read: Callable[[Any], Any], what: Any) -> Callable[[], Any]:
    """A read that may fail as the system pleases."""

    def reading() -> Any:
        try:
            return read(what)
        except OSError as error:
            return Unknown(error.strerror or type(error).__name__)

    return reading


def _first_reads(asked: Asked, probes: Probes) -> dict[str, Callable[[], Any]]:
    def docker() -> Docker:
        if "compose" not in asked.ways:
            return Docker(None)
        return read_docker(probes.which, probes.run, asked.files, probes.environment)

    reads: dict[str, Callable[[], Any]] = {
        "docker": docker,
        "local_stack": lambda: probes.local_stack(asked.home),
        "local_model": lambda: read_held(asked.local_model, asked.home, probes.run),
        "memory": _reader(lambda _: probes.memory(), None),
        "shm": _reader(lambda _: probes.shm_bytes(), None),
        "open_files": _reader(lambda _: probes.open_files(), None),
        "numa": lambda: probes.library("libnuma.so.1"),
        "modules": lambda: tuple(name for name in LOCAL_MODULES if not probes.installed(name)),
        "vllm_with_gpu": probes.vllm_with_gpu,
    }
    if asked.files is not None and "compose" in asked.ways and asked.compose_model:
        text, token = asked.compose_model, asked.files.setting("HF_TOKEN", probes.environment)
        models = models_folder(asked.files, probes.environment)
        reads["compose_model"] = lambda: read_of_compose(text, models, token.value, probes.run)
    for use, path in disk_paths(asked, probes.environment).items():
        reads[f"disk_{use}"] = _reader(probes.disk, path)
    return reads


def disk_paths(asked: Asked, environment: Mapping[str, str]) -> dict[str, Path]:
    """What writes where on this machine; Docker's own folder is asked of Docker."""
    home = environment.get("HF_HOME")
    cache = Path(home) if home else Path("~/.cache/huggingface").expanduser()
    paths = {"results": asked.results, "models": asked.home / "models", "hub_cache": cache}
    folder = None if asked.files is None else models_folder(asked.files, environment)
    return paths if folder is None else {**paths, "compose_models": folder}


def models_folder(files: ComposeFiles, environment: Mapping[str, str]) -> Path | None:
    """Where the containers keep their models; None when it is a volume of Docker's."""
    text = files.setting("MODELS", environment).value or ""
    # as Compose tells the two apart: a volume's name has no slash
    return files.folder / Path(text).expanduser() if "/" in text else None


def _machine(probes: Probes, read: Mapping[str, Any]) -> Machine:
    modules = read["modules"]
    return Machine(
        python=probes.python,
        system=probes.system,
        memory=read["memory"],
        shm_bytes=read["shm"],
        open_files=read["open_files"],
        disks={
            name.removeprefix("disk_"): value
            for name, value in read.items()
            if name.startswith("disk_")
        },
        missing_modules=() if isinstance(modules, Unknown) else modules,
        vllm_with_gpu=read["vllm_with_gpu"] is True,
        numa_library=read["numa"] is True,
    )


def own_ports(
    asked: Asked, docker: Docker, stack: LocalStack, ports: tuple[NeededPort, ...]
) -> dict[str, dict[int, str]]:
    """way -> port -> use, of the servers of ours that run."""
    folder = None if asked.files is None else str(asked.files.folder.resolve())
    published = {
        number
        for container in docker.containers
        if folder is not None and container.project_folder == folder
        for number in container.ports
    }
    compose = {port.number: port.use for port in ports if port.number in published}
    return {
        "local": dict(stack.ports),
        "compose": {number: use for number, use in compose.items() if number is not None},
    }


def _second_reads(
    asked: Asked,
    probes: Probes,
    ports: tuple[NeededPort, ...],
    taken: set[int],
    owned: Mapping[str, Mapping[int, str]],
) -> dict[str, Callable[[], Any]]:
    """What needs the ports: the servers, and Prometheus."""
    ours = {number: use for way in owned.values() for number, use in way.items() if use in SERVERS}
    strangers = [
        port.number
        for port in ports
        if port.use in SERVERS and port.number in taken and port.number not in ours
    ]

    def servers() -> dict[str, Server]:
        return {use: _server(probes, _url(number)) for number, use in ours.items()}

    def foreign() -> dict[int, str]:
        models = {n: probes.served_model(_url(n)) for n in strangers if n is not None}
        return {number: model for number, model in models.items() if model is not None}

    targets = {use: f"{_url(number)}/metrics" for number, use in ours.items()}
    return {
        "servers": servers,
        "foreign": foreign,
        "prometheus": lambda: _prometheus(asked, probes, ports, taken, targets),
    }


def _url(number: int) -> str:
    return f"http://{HOST}:{number}"


def _server(probes: Probes, url: str) -> Server:
    healthy = probes.healthy(url)
    return Server(url, healthy, probes.served_model(url) if healthy else None)


def _prometheus(
    asked: Asked,
    probes: Probes,
    ports: tuple[NeededPort, ...],
    taken: set[int],
    targets: Mapping[str, str],
) -> Prometheus | None:
    if asked.prometheus_url == PROMETHEUS_OFF:
        return None
    url, named = asked.prometheus_url, True
    if url == PROMETHEUS_AUTO:
        numbers = [port.number for port in ports if port.use == "prometheus"]
        if numbers and numbers[0] not in taken:
            return None
        # without Compose a run looks at the usual address, and goes without it in silence
        named = bool(numbers)
        url = _url(numbers[0]) if numbers and numbers[0] else DEFAULT_PROMETHEUS
    shown = without_credentials(url)
    try:
        return Prometheus(shown, version=probes.prometheus(url, targets))
    except PrometheusFaultError as problem:
        return Prometheus(shown, problem=str(problem)) if named else None
