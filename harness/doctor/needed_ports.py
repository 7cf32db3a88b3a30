"""The ports that a stack and a run need, and where each one's number is set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.doctor.asked import Asked
from harness.doctor.compose_files import ComposeFiles, Setting
from harness.doctor.facts import Docker
from harness.doctor.rows import WAYS, Way
from harness.stack.options import UpOptions

_SUFFIX = "_PORT"
DCGM = "DCGM_PORT"
#: what the files publish when Compose is not there to say so
PUBLISHED: Mapping[str, int] = {
    "PAGED_PORT": 8000,
    "CONTIGUOUS_PORT": 8001,
    "PROMETHEUS_PORT": 9090,
    "GRAFANA_PORT": 3000,
    DCGM: 9400,
}
HARNESS = "harness"
_HARNESS_PLACE = "--metrics-port of the scenario (KVKNEE_METRICS_PORT)"


@dataclass(frozen=True)
class NeededPort:
    """One port; ``number`` is None when what was set is no port."""

    #: ``paged``, ``contiguous``, ``prometheus``, ...
    use: str
    number: int | None
    #: what moves it, in words
    place: str
    ways: tuple[Way, ...]


def needed_ports(
    asked: Asked, docker: Docker, environment: Mapping[str, str]
) -> tuple[NeededPort, ...]:
    """All ports of what was asked; one that both ways share is one entry."""
    found: list[NeededPort] = []
    if asked.files is not None and "compose" in asked.ways:
        found += _of_compose(asked, asked.files, docker, environment)
    if "local" in asked.ways:
        defaults = UpOptions(home=asked.home)
        local = (("paged", defaults.paged_port), ("contiguous", defaults.contiguous_port))
        for use, number in local:
            _join(found, NeededPort(use, number, f"kvknee up --{use}-port", ("local",)))
    # none: no live metrics; 0: any port that is free
    if asked.metrics.port:
        found.append(NeededPort(HARNESS, asked.metrics.port, _HARNESS_PLACE, WAYS))
    return tuple(found)


def _join(found: list[NeededPort], port: NeededPort) -> None:
    for index, other in enumerate(found):
        if (other.use, other.number) == (port.use, port.number):
            place = f"{other.place}, or {port.place}"
            found[index] = replace(other, place=place, ways=other.ways + port.ways)
            return
    found.append(port)


def port_number(text: str) -> int | None:
    """1 to 65535, else None."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return None
    number = int(text)
    return number if 1 <= number <= 65_535 else None


def _of_compose(
    asked: Asked, files: ComposeFiles, docker: Docker, environment: Mapping[str, str]
) -> Iterator[NeededPort]:
    """As Compose merged them; without Compose, the variables that its files are known for."""
    settings = {
        name: files.setting(name, environment)
        for name in {*files.variables, *PUBLISHED}
        if name.endswith(_SUFFIX)
    }
    if isinstance(docker.config, Mapping):
        yield from _published(docker.config, settings)
        return
    for name, default in PUBLISHED.items():
        if name == DCGM and asked.compose_device == "cpu":
            continue
        setting = settings[name]
        text = setting.value if setting.value is not None else str(default)
        # a value made of other variables is for Compose to work out
        if "$" not in text:
            yield NeededPort(_use(name), port_number(text), setting.place, ("compose",))


def _published(config: Mapping[str, Any], settings: Mapping[str, Setting]) -> Iterator[NeededPort]:
    names = {
        number: name
        for name, setting in settings.items()
        if (number := port_number(setting.value or "")) is not None
    }
    for service, content in (config.get("services") or {}).items():
        for entry in content.get("ports") or ():
            number = port_number(str(entry.get("published") or ""))
            # a range, or a port that Docker chooses: nothing that could be taken
            if number is None:
                continue
            name = names.get(number)
            use = _use(name) if name else str(service)
            place = settings[name].place if name else f"the ports of {service} in the Compose file"
            yield NeededPort(use, number, place, ("compose",))


def _use(variable: str) -> str:
    return variable.removesuffix(_SUFFIX).lower()
