"""Rows about Docker, Compose, the files and the images."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.doctor.asked import Asked
from harness.doctor.compose_files import CPU, ComposeFiles, asks_for_gpu, text_asks_for_gpu
from harness.doctor.env_file import without_words
from harness.doctor.facts import Daemon, Device, Disk, Docker, Unknown
from harness.doctor.rows import Row, Way, fault, ok, warning
from harness.sizes import readable_size

GIB = 2**30
#: the override for the CPU uses ``!reset`` and ``!override``, which work from here on
LEAST_COMPOSE = (2, 24, 4)
#: unpacked images: vLLM's CUDA image some 25 GB, ours with CUDA torch 8 GB, and the rest;
#: vLLM's CPU image 4 GB, ours 2 GB, Prometheus and Grafana 1 GB
IMAGE_BYTES: Mapping[Device, int] = {"gpu": 35 * GIB, "cpu": 8 * GIB}
#: what a stack writes whose images are there: samples, a model, logs
STACK_BYTES = GIB
_COMPOSE: tuple[Way, ...] = ("compose",)
_OTHERWISE = "or use kvknee up, which needs no Docker (kvknee doctor --local)"


def check_docker(asked: Asked, docker: Docker | Unknown, hidden: frozenset[str]) -> Iterator[Row]:
    """From the client to the images; what depends on a missing part is left out.

    ``hidden`` are values that Compose's messages must not repeat.
    """
    if isinstance(docker, Unknown):
        yield warning("docker", f"cannot be told: {docker.reason}", "try docker info", _COMPOSE)
        return
    if docker.client is None:
        yield fault(
            "docker",
            "Docker is not installed (no docker on the PATH)",
            f"install Docker Engine or Docker Desktop, {_OTHERWISE}",
            _COMPOSE,
        )
    else:
        yield ok("docker", "the client is installed", _COMPOSE)
        yield _daemon(docker.daemon)
        yield _compose(docker.compose)
    if asked.files is not None:
        yield from _files(asked, asked.files, docker, hidden)


def _daemon(daemon: Daemon | str | None) -> Row:
    name = "docker_daemon"
    if isinstance(daemon, Daemon):
        return ok(name, f"Docker {daemon.version} answers", _COMPOSE)
    said = (daemon or "it gives no reason").lower()
    if "permission denied" in said:
        return fault(
            name,
            "Docker's socket refuses you (permission denied)",
            "sudo usermod -aG docker $USER, then log in again (the group is as good as root)",
            _COMPOSE,
        )
    if "gave no answer" in said:
        return fault(
            name,
            f"Docker is installed, but hangs: {daemon}",
            "restart it: sudo systemctl restart docker, or Docker Desktop",
            _COMPOSE,
        )
    if "cannot connect" in said or "connection refused" in said or "no such file" in said:
        return fault(
            name,
            "Docker is installed, but its daemon does not run",
            "start it: sudo systemctl start docker, or Docker Desktop "
            "(or check DOCKER_HOST and docker context ls)",
            _COMPOSE,
        )
    return fault(
        name,
        f"Docker's daemon cannot be used: {said[:160]}",
        "docker info must work first; check DOCKER_HOST and docker context ls",
        _COMPOSE,
    )


def _compose(version: str | Unknown | None) -> Row:
    name = "compose"
    if isinstance(version, Unknown):
        return fault(name, f"cannot be told: {version.reason}", "try docker compose version")
    if version is None:
        return fault(
            name,
            "docker compose is not installed (docker-compose with a dash is the old one)",
            "install Compose v2: the package docker-compose-plugin, or docker-compose-v2 on Ubuntu",
            _COMPOSE,
        )
    if _numbers(version) < LEAST_COMPOSE:
        least = ".".join(map(str, LEAST_COMPOSE))
        return fault(name, f"Compose {version} is too old", f"install {least} or newer", _COMPOSE)
    return ok(name, f"Compose {version}", _COMPOSE)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _files(
    asked: Asked, files: ComposeFiles, docker: Docker, hidden: frozenset[str]
) -> Iterator[Row]:
    if files.missing:
        names = ", ".join(map(str, files.missing))
        yield fault(
            "compose_files",
            f"not there: {names} (asked for by {files.chosen_by})",
            "run in a clone of kvknee, or name the files with --compose",
            _COMPOSE,
        )
        return
    yield _device(asked, files, docker.config)
    yield from _env(files)
    if isinstance(docker.config, str):
        told = without_words(docker.config, hidden)[:200]
        yield fault("compose_config", f"Compose refuses the files: {told}", _SEE_EXAMPLE, _COMPOSE)
    elif docker.config is not None:
        yield ok("compose_config", "Compose accepts the files", _COMPOSE)


_SEE_EXAMPLE = "compare .env with .env.example; docker compose config --quiet checks it again"


def _device(asked: Asked, files: ComposeFiles, config: Mapping[str, Any] | str | None) -> Row:
    """Whether the files suit the device that was asked for."""
    name = "compose_files"
    on_gpu = asks_for_gpu(config) if isinstance(config, Mapping) else text_asks_for_gpu(files.files)
    if on_gpu and asked.compose_device == "cpu":
        return fault(
            name,
            f"{files.names}: these files reserve an NVIDIA GPU",
            f"add the override for a machine without one: -f {CPU}",
            _COMPOSE,
        )
    if asked.gpu_demanded and not on_gpu:
        return fault(name, f"{files.names}: these files use no GPU", f"leave {CPU} away", _COMPOSE)
    where = "with an NVIDIA GPU" if on_gpu else "on the CPU"
    return ok(name, f"{files.names}: {where}", _COMPOSE)


def _env(files: ComposeFiles) -> Iterator[Row]:
    """Lines of .env that have no effect."""
    if files.env.bad_lines:
        lines = ", ".join(map(str, files.env.bad_lines))
        text = f"{files.env.path}: no NAME=value in line {lines}"
        yield fault("env_file", text, "correct the line, or put a # before it", _COMPOSE)
    for variable, line in files.unused().items():
        near = _near(variable, [*files.variables, *files.documented])
        yield warning(
            "env_file",
            f"{files.env.path}: the files use no {variable} (line {line})",
            f"did you mean {near}?" if near else "see .env.example for the names that they use",
            _COMPOSE,
        )


def _near(name: str, known: Sequence[str]) -> str | None:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return found[0] if found else None


def check_docker_room(
    asked: Asked, docker: Docker | Unknown, disk: Disk | Unknown | None
) -> Iterator[Row]:
    """Rows about the disk under Docker's images and volumes."""
    if not isinstance(docker, Docker) or not isinstance(docker.daemon, Daemon):
        return
    name = "disk_docker"
    if disk is None or isinstance(disk, Unknown):
        text = f"{docker.daemon.root or 'its folder'} cannot be seen from here"
        yield ok(name, f"{text} (Docker keeps it in a virtual machine, or elsewhere)", _COMPOSE)
        return
    here = missing_images(docker) == ()
    needed = STACK_BYTES if here else IMAGE_BYTES[asked.compose_device]
    text = f"{readable_size(disk.free_bytes)} free in {docker.daemon.root}"
    what = "the stack writes" if here else "images that are not here yet take"
    if disk.free_bytes < needed:
        yield fault(
            name,
            f"{text}; {what} about {readable_size(needed)}",
            "docker system prune frees what nothing uses; or move data-root to another disk",
            _COMPOSE,
        )
    else:
        yield ok(name, text, _COMPOSE)


def missing_images(docker: Docker) -> tuple[str, ...] | None:
    """Images of the merged files that are not here; None when that is not known."""
    if not isinstance(docker.config, Mapping) or docker.images is None:
        return None
    project = docker.config.get("name", "")
    wanted = {
        # what Compose calls the image of a service that it builds
        str(service.get("image") or f"{project}-{name}")
        for name, service in (docker.config.get("services") or {}).items()
    }
    wanted = {image if ":" in image.rpartition("/")[2] else f"{image}:latest" for image in wanted}
    return tuple(sorted(image for image in wanted if image not in docker.images))
