"""From the command line's words to the verdict: ask, gather, check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.doctor.asked import Asked
from harness.doctor.bounded import within
from harness.doctor.check_docker import check_docker, check_docker_room
from harness.doctor.check_gpu import check_driver, check_runtime, check_shares
from harness.doctor.check_machine import check_compose_models_disk, check_local, check_machine
from harness.doctor.check_model import check_compose_model, check_model
from harness.doctor.check_ports import check_ports
from harness.doctor.check_services import check_services
from harness.doctor.check_settings import check_settings
from harness.doctor.compose_files import (
    BASE,
    ComposeFiles,
    asks_for_gpu,
    find_files,
    text_asks_for_gpu,
)
from harness.doctor.env_file import EnvFile, hidden_values, secrets_of, without
from harness.doctor.facts import Device, Docker, Gpu, Model, Unknown
from harness.doctor.gather import READ_S, Facts, gather, own_ports
from harness.doctor.gpu_facts import read_gpus
from harness.doctor.gpu_shares import gpu_shares
from harness.doctor.probes import Probes
from harness.doctor.rows import WAYS, Row, Status, Way, blocking, warning
from harness.load.settings import PROMETHEUS_AUTO, parse_metrics
from harness.plan.levels import parse_levels
from harness.stack.options import UpOptions

#: the scenario's own default
DEFAULT_LEVELS = "1,4,16,32"
#: the variable of the Compose files that names the model
MODEL_VARIABLE = "MODEL"


@dataclass(frozen=True)
class Question:
    """The command line as it was given; None asks for the default."""

    home: Path
    compose: tuple[Path, ...] = ()
    #: ``kvknee up`` is asked about
    local: bool = False
    device: Literal["auto", "gpu", "cpu"] = "auto"
    model: str | None = None
    levels: str | None = None
    results: Path | None = None
    #: where a clone of kvknee is expected
    folder: Path = Path()


@dataclass(frozen=True)
class Section:
    """Rows that belong together."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Report:
    """The answer."""

    asked: Asked
    sections: tuple[Section, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, in the order in which they are shown."""
        return tuple(row for section in self.sections for row in section.rows)

    def blocked_by(self, way: Way) -> tuple[str, ...]:
        """Names of the faults in the way of one way; empty when it is open."""
        return blocking(self.rows, way)

    @property
    def exit_code(self) -> int:
        """1 when a fault blocks any of what was asked, else 0."""
        return int(any(row.status is Status.FAULT for row in self.rows))


def examine(question: Question, probes: Probes) -> Report:
    """Look at everything that was asked about; raises UsageError for a bad question."""
    environment = probes.environment
    gpus: tuple[Gpu, ...] | str | Unknown = "not looked for (--cpu)"
    if question.device != "cpu":
        gpus = within(READ_S, lambda: read_gpus(probes.which, probes.run))
    files = None
    if question.compose or not question.local:
        files = find_files(
            question.compose, question.folder, environment, _wanted_device(question.device, gpus)
        )
    asked = _asked(question, files, gpus, probes)
    facts = gather(asked, gpus, probes)
    if question.device == "auto" and isinstance(facts.docker, Docker):
        asked = _as_merged(asked, facts.docker)
    env_files: tuple[EnvFile, ...] = () if files is None else (files.env,)
    secrets = secrets_of(environment, *env_files)
    sections = _sections(asked, facts, environment, secrets | hidden_values(*env_files))
    return Report(asked, tuple(_clean(section, secrets) for section in sections if section.rows))


def _wanted_device(device: str, gpus: tuple[Gpu, ...] | str | Unknown) -> Device:
    if device == "auto":
        return "gpu" if isinstance(gpus, tuple) else "cpu"
    return "gpu" if device == "gpu" else "cpu"


def _asked(
    question: Question,
    files: ComposeFiles | None,
    gpus: tuple[Gpu, ...] | str | Unknown,
    probes: Probes,
) -> Asked:
    environment = probes.environment
    compose_device = local_device = _wanted_device(question.device, gpus)
    if question.device == "auto":
        local_device = "gpu" if probes.vllm_with_gpu() else "cpu"
        if files is not None:
            compose_device = "gpu" if text_asks_for_gpu(files.present) else "cpu"
    levels = question.levels or environment.get("KVKNEE_LEVELS") or DEFAULT_LEVELS
    results = question.results or Path(environment.get("KVKNEE_RESULTS_DIR") or "results")
    return Asked(
        ways=_ways(question, files),
        files=files,
        compose_device=compose_device,
        local_device=local_device,
        files_lacking=files is None and not question.local,
        gpu_demanded=question.device == "gpu",
        local_model=question.model or UpOptions(home=question.home).model,
        compose_model=question.model or _compose_model(files, probes),
        home=question.home,
        results=results,
        largest_level=int(max(parse_levels(levels))),
        prometheus_url=environment.get("KVKNEE_PROMETHEUS_URL") or PROMETHEUS_AUTO,
        metrics=parse_metrics(
            environment.get("KVKNEE_METRICS_HOST", ""), environment.get("KVKNEE_METRICS_PORT", "")
        ),
    )


def _ways(question: Question, files: ComposeFiles | None) -> tuple[Way, ...]:
    if question.local == bool(question.compose):
        return WAYS if files is not None else ("local",)
    return ("local",) if question.local else ("compose",)


def _compose_model(files: ComposeFiles | None, probes: Probes) -> str | None:
    return None if files is None else files.setting(MODEL_VARIABLE, probes.environment).value


def _as_merged(asked: Asked, docker: Docker) -> Asked:
    """The device that the merged files really ask for, where Compose could merge them."""
    if not isinstance(docker.config, Mapping):
        return asked
    device: Device = "gpu" if asks_for_gpu(docker.config) else "cpu"
    return replace(asked, compose_device=device)


def _sections(
    asked: Asked, facts: Facts, environment: Mapping[str, str], hidden: frozenset[str]
) -> Iterable[Section]:
    runs = bool(facts.servers)
    docker = facts.docker if isinstance(facts.docker, Docker) else Docker(None)
    owned = own_ports(asked, docker, facts.local_stack, facts.ports)
    yield Section("this machine", tuple(check_machine(asked, facts.machine, stack_runs=runs)))
    if "compose" in asked.ways:
        rows = check_docker(asked, facts.docker, hidden)
        room = check_docker_room(asked, facts.docker, facts.docker_disk)
        models = check_compose_models_disk(facts.machine, facts.compose_model)
        values = (
            check_settings(asked.files, asked.compose_device, environment) if asked.files else ()
        )
        yield Section("docker compose up", (*rows, *values, *room, *models))
    elif asked.files_lacking:
        yield Section("docker compose up", (_NO_FILES,))
    if "local" in asked.ways:
        local = check_local(asked, facts.machine, facts.local_model)
        yield Section("kvknee up", tuple(local))
    yield Section("GPU", tuple(_gpu(asked, facts, environment, stack_runs=runs)))
    yield Section(
        "ports",
        tuple(
            check_ports(
                asked, facts.ports, facts.uses, owned, docker.containers, facts.foreign_models
            )
        ),
    )
    yield Section("model", tuple(_models(asked, facts)))
    services = check_services(asked, facts.servers, facts.local_stack, facts.prometheus)
    yield Section("running now", tuple(services))


_NO_FILES = warning(
    "compose_files",
    f"no {BASE} in this folder, so docker compose up was not looked at",
    "run this in a clone of kvknee, or name the files with --compose",
    ("compose",),
)


def _gpu(
    asked: Asked, facts: Facts, environment: Mapping[str, str], *, stack_runs: bool
) -> Iterable[Row]:
    yield from check_driver(asked, facts.gpus)
    yield from check_runtime(asked, facts.docker)
    if isinstance(facts.gpus, tuple):
        models: dict[Way, Model] = {"local": facts.local_model}
        if facts.compose_model is not None:
            models["compose"] = facts.compose_model
        shares = gpu_shares(asked, facts.gpus, environment)
        yield from check_shares(facts.gpus, shares, models, stack_runs=stack_runs)


def _models(asked: Asked, facts: Facts) -> Iterable[Row]:
    """A row for each way's model; one row when it is the same."""
    shared = "local" in asked.ways and facts.compose_model == facts.local_model
    if "local" in asked.ways:
        yield from check_model(facts.local_model, asked.ways if shared else ("local",))
    if facts.compose_model is not None and not shared:
        yield from check_compose_model(facts.compose_model)


def _clean(section: Section, secrets: frozenset[str]) -> Section:
    """No secret leaves this place, whoever repeated it."""
    rows = tuple(
        replace(row, found=without(row.found, secrets), remedy=without(row.remedy, secrets))
        for row in section.rows
    )
    return replace(section, rows=rows)
