"""A machine on which nothing is wrong; each test changes the one thing that it is about."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.doctor.examine import Question, Report, examine
from harness.doctor.facts import Disk, Limits, LocalStack, Memory, PortUse, Ran, Unknown
from harness.doctor.probes import Probes
from harness.doctor.rows import Row, Status

GIB = 2**30
ROOT = Path(__file__).parents[2]

INFO: dict[str, Any] = {
    "ServerVersion": "28.2.2",
    "DockerRootDir": "/",
    "MemTotal": 64 * GIB,
    "Runtimes": {"runc": {}, "nvidia": {}},
}
GPU_LINE = "NVIDIA H200, 575.57.08, GPU-1f2e3d4c, 143771, 143167"
IMAGES = "kvknee-contiguous:cpu\nkvknee-paged:cpu\nprom/prometheus:v3\ngrafana/grafana:v12\n"

BASE = """\
services:
  paged:
    image: vllm/vllm-openai:v0
    command: ["--model=${MODEL:-org/large}", "--share=${PAGED_GPU_MEMORY:-0.45}"]
    ports: ["127.0.0.1:${PAGED_PORT:-8000}:8000"]
    deploy:
      resources:
        reservations:
          devices: [{driver: nvidia, device_ids: ["${PAGED_GPU:-0}"], capabilities: [gpu]}]
  grafana:
    image: grafana/grafana:v12
    environment: {PASSWORD: "${GRAFANA_ADMIN_PASSWORD:-}"}
    ports: ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"]
"""
OVERRIDE = """\
services:
  paged:
    command: ["--model=${MODEL:-tiny}"]
    deploy: !reset null
"""
EXAMPLE = "# PAGED_PORT=8000\n#GRAFANA_ADMIN_PASSWORD=\nMODEL=tiny\n"

#: the service's share of what `docker compose config --format json` prints
GPU_DEVICES = {"resources": {"reservations": {"devices": [{"driver": "nvidia"}]}}}
CONFIG: dict[str, Any] = {
    "name": "kvknee",
    "services": {
        "paged": {"image": "kvknee-paged:cpu", "ports": [{"target": 8000, "published": "8000"}]},
        "contiguous": {
            "image": "kvknee-contiguous:cpu",
            "ports": [{"target": 8001, "published": "8001"}],
        },
        "grafana": {
            "image": "grafana/grafana:v12",
            "ports": [{"target": 3000, "published": "3000"}],
        },
    },
}

#: 2 layers x 2 KV heads x 64 x (K and V) x 2 B = 1,024 B per token
MODEL_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
HUB: dict[str, Any] = {
    "config": MODEL_CONFIG,
    "error": None,
    "offline": False,
    "weights_bytes": 3 * GIB,
    "weights_here": False,
}


class Commands:
    """Answers to commands by the words that they begin with, the program's folder left out."""

    def __init__(self, answers: Mapping[str, Ran | Unknown]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.extra: dict[str, str] = {}

    def __call__(
        self, command: Sequence[str], extra: Mapping[str, str] | None = None
    ) -> Ran | Unknown:
        text = " ".join([Path(command[0]).name, *command[1:]])
        self.asked.append(text)
        self.extra |= extra or {}
        fits = [start for start in self.answers if text.startswith(start)]
        assert fits, f"no answer to {text}"
        return self.answers[max(fits, key=len)]


def said(out: str, code: int = 0, error: str = "") -> Ran:
    return Ran(code, out, error)


def commands(**changes: Ran | Unknown) -> Commands:
    """A well Docker and a well GPU; ``changes`` are named info, config, ps, ..."""
    names = {
        "info": "docker info",
        "version": "docker compose version",
        "config": "docker compose -f",
        "ps": "docker ps",
        "images": "docker image ls",
        "gpus": "nvidia-smi",
        "hub": Path(sys.executable).name,
    }
    answers = {
        "docker info": said(json.dumps(INFO)),
        "docker compose version": said("2.40.3\n"),
        "docker compose -f": said(json.dumps(CONFIG)),
        "docker ps": said(""),
        "docker image ls": said(IMAGES),
        "nvidia-smi": said(GPU_LINE + "\n"),
        names["hub"]: said(json.dumps(HUB)),
    }
    return Commands(answers | {names[name]: answer for name, answer in changes.items()})


def well(**changes: Any) -> Probes:
    """All is well: Linux, 64 GiB, Docker, no GPU tool, free ports, the servers' modules."""
    probes = Probes(
        environment={"PATH": "/usr/bin"},
        python=(3, 11, 9),
        system="Linux",
        which=lambda name: f"/usr/bin/{name}" if name == "docker" else None,
        run=commands(),
        port=lambda number: PortUse("free"),
        disk=lambda path: Disk(path, 500 * GIB, 10**6, writable=True),
        memory=lambda: Memory(64 * GIB, 60 * GIB),
        shm_bytes=lambda: 32 * GIB,
        open_files=lambda: Limits(65_536, 65_536),
        installed=lambda name: True,
        vllm_with_gpu=lambda: False,
        library=lambda name: True,
        local_stack=lambda home: LocalStack(),
        healthy=lambda url: True,
        served_model=lambda url: "tiny",
        prometheus=lambda url, targets: "3.13.2",
    )
    return replace(probes, **changes)


def with_gpu(**changes: Any) -> Probes:
    """The same with an NVIDIA GPU and a vLLM that uses it."""
    given: dict[str, Any] = {
        "which": lambda name: f"/usr/bin/{name}",
        "vllm_with_gpu": lambda: True,
    }
    return well(**(given | changes))


def clone(folder: Path, env: str | None = None) -> Path:
    """A folder with Compose files, as a clone of kvknee has them."""
    (folder / "docker-compose.yml").write_text(BASE)
    (folder / "docker-compose.cpu.yml").write_text(OVERRIDE)
    (folder / ".env.example").write_text(EXAMPLE)
    if env is not None:
        (folder / ".env").write_text(env)
    return folder


def look(folder: Path, probes: Probes, **question: Any) -> Report:
    """Ask in that folder."""
    given: dict[str, Any] = {"home": folder / "home", "folder": folder, "results": folder}
    return examine(Question(**(given | question)), probes)


def rows_of(report: Report, name: str) -> list[Row]:
    return [row for row in report.rows if row.name == name]


def row_of(report: Report, name: str) -> Row:
    (row,) = rows_of(report, name)
    return row


def faults(report: Report) -> list[str]:
    return [row.name for row in report.rows if row.status is Status.FAULT]


def warnings(report: Report) -> list[str]:
    return [row.name for row in report.rows if row.status is Status.WARNING]
