"""Which Compose files are meant, and what their text tells without Compose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.doctor.env_file import NAME as ENV_NAME
from harness.doctor.env_file import EnvFile, read_env
from harness.doctor.facts import Device
from harness.errors import OptionError, UsageError

BASE = "docker-compose.yml"
CPU = "docker-compose.cpu.yml"
EXAMPLE = ".env.example"
#: ``${NAME}``, ``${NAME:-default}``, ``${NAME:?why}``, ``$NAME``; a doubled $ is none
_VARIABLE = re.compile(r"(?<!\$)\$(?:\{([A-Za-z_]\w*)(?::?-([^${}]*))?|([A-Za-z_]\w*))")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")
_GPU = re.compile(r"\b(?:gpus:\s*\S|(?:driver|runtime):\s*[\"']?nvidia)")
#: .env may set what Compose and the tools in the containers read by themselves
_FOREIGN = re.compile(r"COMPOSE_|DOCKER_|BUILDKIT_|BUILDX_|HTTPS?_PROXY|NO_PROXY", re.IGNORECASE)


@dataclass(frozen=True)
class ComposeFiles:
    """The files of a stack, as Compose would merge them."""

    files: tuple[Path, ...]
    #: how they came to be chosen
    chosen_by: str
    env: EnvFile
    #: variable -> its default in the files; None when it has none
    variables: Mapping[str, str | None]
    #: variables that the example file documents
    documented: frozenset[str]
    #: what of the files is not there
    missing: tuple[Path, ...] = ()

    @property
    def folder(self) -> Path:
        """Compose's project folder."""
        return self.files[0].parent

    @property
    def present(self) -> tuple[Path, ...]:
        """Those that are there."""
        return tuple(path for path in self.files if path not in self.missing)

    @property
    def names(self) -> str:
        """The files as the command line of Compose takes them."""
        return " ".join(f"-f {path}" for path in self.files)

    def setting(self, name: str, environment: Mapping[str, str]) -> Setting:
        """A variable's value as Compose finds it: the shell, then .env, then the default."""
        if name in environment:
            return Setting(environment[name], f"{name} in your shell", given=True)
        entry = self.env.entries.get(name)
        if entry is not None:
            return Setting(entry.value, f"{name} in {ENV_NAME} (line {entry.line})", given=True)
        return Setting(self.variables.get(name), f"{name} in {ENV_NAME}", given=False)

    def unused(self) -> dict[str, int]:
        """Names in .env that neither the files nor the example know, with their lines."""
        known = self.variables.keys() | self.documented
        return {
            name: entry.line
            for name, entry in self.env.entries.items()
            if name not in known and not _FOREIGN.match(name)
        }


@dataclass(frozen=True)
class Setting:
    """The value of a variable, and in words where it is set or would be."""

    value: str | None
    place: str
    given: bool


def find_files(
    named: Sequence[Path],
    folder: Path,
    environment: Mapping[str, str],
    device: Device,
) -> ComposeFiles | None:
    """The files that were ``named``, else those that Compose would take; None: none here.

    Raises OptionError for a named file that is not there, and UsageError for one that
    cannot be read.
    """
    for path in named:
        if not path.is_file():
            raise OptionError("--compose", str(path), "a Compose file that exists")
    if named:
        return _read(tuple(named), "--compose")
    env = read_env(folder / ENV_NAME)
    entry = env.entries.get("COMPOSE_FILE")
    listed = environment.get("COMPOSE_FILE") or (entry.value if entry else "")
    if listed:
        separator = environment.get("COMPOSE_PATH_SEPARATOR", ":")
        paths = tuple(folder / part for part in listed.split(separator) if part)
        return _read(paths, "COMPOSE_FILE")
    base = folder / BASE
    if not base.is_file():
        return None
    return _read((base,) if device == "gpu" else (base, folder / CPU), "default")


def _read(files: tuple[Path, ...], chosen_by: str) -> ComposeFiles:
    texts = {path: _text(path) for path in files}
    variables: dict[str, str | None] = {}
    for text in texts.values():
        variables |= variables_of(text or "")
    folder = files[0].parent
    return ComposeFiles(
        files=files,
        chosen_by=chosen_by,
        env=read_env(folder / ENV_NAME),
        variables=variables,
        documented=_documented(_text(folder / EXAMPLE) or ""),
        missing=tuple(path for path, text in texts.items() if text is None),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text file") from error


def variables_of(text: str) -> dict[str, str | None]:
    """The variables of a Compose file's text, with the first default that each has."""
    found: dict[str, str | None] = {}
    for match in _VARIABLE.finditer(_COMMENT.sub("", text)):
        name, default = match[1] or match[3], match[2]
        if found.get(name) is None:
            found[name] = default
    return found


def _documented(example: str) -> frozenset[str]:
    """Names of the example, those that are commented out included."""
    return frozenset(re.findall(r"(?m)^\s*#?\s*([A-Z][A-Z0-9_]*)=", example))


def asks_for_gpu(config: Mapping[str, object]) -> bool:
    """Whether a service of the merged files reserves a GPU."""
    services = config.get("services")
    services = services.values() if isinstance(services, Mapping) else ()
    return any(_service_asks(service) for service in services if isinstance(service, Mapping))


def _service_asks(service: Mapping[str, object]) -> bool:
    if service.get("gpus") or service.get("runtime") == "nvidia":
        return True
    inner: object = service
    for key in ("deploy", "resources", "reservations", "devices"):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return bool(inner)


def text_asks_for_gpu(files: Sequence[Path]) -> bool:
    """The same, from the text alone: an override for the CPU is told by its name."""
    if any("cpu" in path.name.lower() for path in files):
        return False
    return any(_GPU.search(_COMMENT.sub("", _text(path) or "")) for path in files)
