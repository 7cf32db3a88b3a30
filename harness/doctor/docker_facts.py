"""What Docker and Compose say, from their own commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from harness.doctor.bounded import Run
from harness.doctor.compose_files import ComposeFiles
from harness.doctor.facts import Container, Daemon, Docker, Ran, Unknown

NVIDIA_HOOK = "nvidia-container-runtime-hook"
_FOLDER_LABEL = "com.docker.compose.project.working_dir"
_CONTAINERS = '{{.Names}}\t{{.Label "' + _FOLDER_LABEL + '"}}\t{{.Ports}}'
#: ``127.0.0.1:8000->8000/tcp``, ``0.0.0.0:8000-8002->8000-8002/tcp``
_PUBLISHED = re.compile(r":(\d+)(?:-(\d+))?->")
#: what Compose says before it says what is wrong
_CHATTER = re.compile(r'^(?:time="|WARN\[|level=)')


def read_docker(
    which: Callable[[str], str | None],
    run: Run,
    files: ComposeFiles | None,
    environment: Mapping[str, str],
) -> Docker:
    """All that the client tells; a daemon that does not answer is asked once only."""
    client = which("docker")
    if client is None:
        return Docker(None)
    daemon = read_daemon(run([client, "info", "--format", "{{json .}}"]))
    compose = read_version(run([client, "compose", "version", "--short"]))
    config = None
    if files is not None and not files.missing and isinstance(compose, str):
        named = [part for path in files.files for part in ("-f", str(path))]
        config = read_config(run([client, "compose", *named, "config", "--format", "json"]))
    containers: tuple[Container, ...] = ()
    images = None
    if isinstance(daemon, Daemon):
        containers = read_containers(run([client, "ps", "--no-trunc", "--format", _CONTAINERS]))
        images = read_images(run([client, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]))
    host = environment.get("DOCKER_HOST", "")
    return Docker(
        client=client,
        daemon=daemon,
        compose=compose,
        config=config,
        containers=containers,
        images=images,
        nvidia_hook=which(NVIDIA_HOOK) is not None,
        remote=bool(host) and not host.startswith(("unix:", "npipe:", "fd:")),
    )


def read_daemon(answer: Ran | Unknown) -> Daemon | str:
    """The daemon, or why it cannot be used.

    The exit code does not tell: Docker 20.10 ends with 0 though no daemon answered.
    """
    if isinstance(answer, Unknown):
        return answer.reason
    info = _object(answer.out)
    problems = info.get("ServerErrors") or []
    if answer.error.strip() and not info.get("ServerVersion"):
        problems = [answer.error]
    if problems or not info.get("ServerVersion"):
        return _last_line(str(problems[0])) if problems else "the daemon does not say its version"
    return Daemon(
        version=str(info["ServerVersion"]),
        root=info.get("DockerRootDir") or None,
        memory_bytes=info.get("MemTotal") or None,
        runtimes=frozenset(info.get("Runtimes") or ()),
        devices=frozenset(
            str(device.get("ID", ""))
            for device in info.get("DiscoveredDevices") or ()
            if isinstance(device, dict)
        ),
    )


def read_version(answer: Ran | Unknown) -> str | Unknown | None:
    """Compose's version; None when the client has no such plugin."""
    if isinstance(answer, Unknown):
        return answer
    text = answer.out.strip().removeprefix("v")
    return text if answer.code == 0 and re.match(r"\d+\.\d+", text) else None


def read_config(answer: Ran | Unknown) -> Mapping[str, Any] | str:
    """The merged files, or what Compose has against them."""
    if isinstance(answer, Unknown):
        return answer.reason
    if answer.code != 0:
        return _last_line(answer.error) or "Compose gives no reason"
    return _object(answer.out)


def read_containers(answer: Ran | Unknown) -> tuple[Container, ...]:
    """The running containers with the ports that they publish."""
    if isinstance(answer, Unknown) or answer.code != 0:
        return ()
    rows = [line.split("\t") for line in answer.out.splitlines()]
    return tuple(
        Container(row[0], row[1] or None, published(row[2])) for row in rows if len(row) == 3
    )


def published(text: str) -> frozenset[int]:
    """The machine's ports in what ``docker ps`` prints of a container."""
    ports: set[int] = set()
    for match in _PUBLISHED.finditer(text):
        first = int(match[1])
        ports |= set(range(first, int(match[2] or first) + 1))
    return frozenset(ports)


def read_images(answer: Ran | Unknown) -> frozenset[str] | None:
    """``name:tag`` of the images that are here; None when it is not told."""
    if isinstance(answer, Unknown) or answer.code != 0:
        return None
    return frozenset(answer.out.split())


def _object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not _CHATTER.match(line)] or lines
    return told[-1] if told else ""
