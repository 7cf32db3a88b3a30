"""Models: built in, in a folder, on a hub (a real one on this machine), in the hub's cache."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.doctor import bounded
from harness.doctor.check_model import check_compose_model, check_model
from harness.doctor.facts import BadModel, Disk, HeldModel, Model, Unknown
from harness.doctor.model_facts import read_held, read_of_compose
from tests.doctor.hub_server import GATED, NO_CONFIG, OPEN, WEIGHTS, hub
from tests.doctor.well_machine import (
    BASE,
    HUB,
    MODEL_CONFIG,
    ROOT,
    clone,
    commands,
    faults,
    look,
    row_of,
    rows_of,
    said,
    warnings,
    well,
)


class Asking:
    """Asks with a hub and a cache of its own."""

    def __init__(self, address: str, cache: Path) -> None:
        self.environment = {
            **os.environ,
            "HF_ENDPOINT": address,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(ROOT),
        }
        self.environment.pop("HF_HUB_OFFLINE", None)

    def __call__(self, command: Any, extra: Mapping[str, str] | None = None) -> Any:
        return bounded.run(command, {**self.environment, **(extra or {})}, limit_s=60)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with hub() as url:
        yield url


def test_a_hub_model_is_described_without_its_weights(address: str, tmp_path: Path) -> None:
    """2 layers x 2 heads x 64 x (K and V) x 2 B = 1,024 B per token."""
    run = Asking(address, tmp_path)
    model = read_held(OPEN, tmp_path, run)
    assert model == HeldModel(
        OPEN,
        architecture="LlamaForCausalLM",
        context_tokens=4096,
        kv_bytes_per_token=1024,
        weights_bytes=WEIGHTS,
        weights_here=False,
        offline=False,
    )
    # once read, the config is in the cache: without the hub it is known, and the weights are not
    run.environment["HF_HUB_OFFLINE"] = "1"
    again = read_held(OPEN, tmp_path, run)
    assert isinstance(again, HeldModel)
    assert (again.offline, again.weights_bytes, again.context_tokens) == (True, None, 4096)
    assert [row.status.value for row in check_model(again, ("local",))] == ["ok", "warning"]


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        (GATED, "is gated", "accept its terms"),
        (NO_CONFIG, "has no config.json on the hub", "name the model that it was made from"),
        ("org/misspelt", "is not on the hub, or is private", "check its spelling"),
    ],
)
def test_what_the_hub_refuses(
    name: str, problem: str, remedy: str, address: str, tmp_path: Path
) -> None:
    model = read_held(name, tmp_path, Asking(address, tmp_path))
    assert isinstance(model, BadModel)
    assert (problem in model.problem, remedy in model.remedy) == (True, True)
    (row,) = check_model(model, ("local",))
    assert row.status.value == "fault"


def test_a_hub_that_is_out_of_reach(tmp_path: Path) -> None:
    # nothing listens on the discard port
    model = read_held("org/name", tmp_path, Asking("http://127.0.0.1:9", tmp_path))
    assert isinstance(model, BadModel)
    assert model.unreachable
    assert [row.status.value for row in check_model(model, ("local",))] == ["fault"]
    # the containers' volume may have it
    assert [row.status.value for row in check_compose_model(model)] == ["warning"]


def test_a_hub_that_hangs_or_breaks_is_no_fault(tmp_path: Path) -> None:
    late = Unknown("python gave no answer in 10 s")
    for answer in (late, said("", 1, "Traceback\nImportError: no hub")):
        model = read_held("org/name", tmp_path, commands(hub=answer))
        assert isinstance(model, Unknown)
        assert [row.status.value for row in check_model(model, ("local",))] == ["warning"]


def folder(path: Path, config: Any = MODEL_CONFIG, weights: bool = True) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if weights:
        header = json.dumps({"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
        (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return str(path)


def never(command: Any, extra: Any = None) -> Any:
    raise AssertionError(command)


def test_a_folder_is_read_itself(tmp_path: Path) -> None:
    model = read_held(folder(tmp_path / "mine"), tmp_path, never)
    assert isinstance(model, HeldModel)
    assert (model.weights_bytes, model.weights_here, model.kv_bytes_per_token) == (8, True, 1024)
    (row,) = check_model(model, ("local",))
    assert row.found.endswith("context 4,096 tokens; 1,024 B of KV per token; weights 8 B")


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("tinny", "did you mean tiny?"),
        ("/no/such/folder", "--model: '/no/such/folder' is not valid"),
        ("", "--model: '' is not valid"),
    ],
)
def test_a_model_that_is_none(model: str, problem: str, tmp_path: Path) -> None:
    found = read_held(model, tmp_path, never)
    assert isinstance(found, BadModel)
    assert problem in found.problem


def test_a_folder_that_cannot_be_served(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    pointer = tmp_path / "lfs"
    folder(pointer, weights=False)
    (pointer / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    cases = {
        str(tmp_path / "empty"): "config.json",
        folder(tmp_path / "list", config=[1]): "no model config",
        folder(tmp_path / "encoder", config={**MODEL_CONFIG, "model_type": "bert"}): "bert",
        folder(tmp_path / "bare", weights=False): "no safetensors weights",
        str(pointer): "Git LFS pointer",
    }
    for model, words in cases.items():
        found = read_held(model, tmp_path, never)
        assert isinstance(found, BadModel), model
        assert words in found.problem


def test_the_built_in_models_need_nothing(tmp_path: Path) -> None:
    made: Model = HeldModel("tiny", made_here=True)
    assert read_held("tiny", tmp_path, never) == read_of_compose("tiny", None, None, never) == made
    folder((tmp_path / "models").joinpath("x").parent)
    folder(tmp_path / "models" / "tiny")
    assert isinstance(read_held("tiny", tmp_path, never), HeldModel)
    assert read_held("tiny", tmp_path, never) != made


def test_the_containers_token_is_shown_to_the_hub_and_to_nobody_else(tmp_path: Path) -> None:
    run = commands()
    read_of_compose("org/name", None, "hf_0123456789", run)
    assert run.extra == {"HF_TOKEN": "hf_0123456789"}
    assert "hf_0123456789" not in " ".join(run.asked)


def test_a_folder_in_the_containers_volume_cannot_be_told(tmp_path: Path) -> None:
    model = read_of_compose("mine", None, None, never)
    assert isinstance(model, Unknown)
    (row,) = check_compose_model(model)
    assert row.status.value == "warning"


def test_a_folder_that_the_containers_use_is_read_itself(tmp_path: Path) -> None:
    folder(tmp_path / "mine")
    model = read_of_compose("mine", tmp_path, None, never)
    assert isinstance(model, HeldModel)
    assert (model.name, model.weights_here) == ("mine", True)
    lacking = read_of_compose("other", tmp_path, None, never)
    assert isinstance(lacking, BadModel)
    (row,) = check_compose_model(lacking)
    assert (row.status.value, row.remedy) == ("fault", f"see what lies in {tmp_path}")


def test_a_folder_of_models_needs_room(tmp_path: Path) -> None:
    """3 GiB of weights into ./models, and one byte less is free there."""
    models = tmp_path / "models"

    def disk(path: Path) -> Disk:
        return Disk(path, 3 * 2**30 - 1 if path == models else 2**40, None, writable=False)

    clone(tmp_path, env="MODELS=./models\nMODEL=org/name\n")
    (tmp_path / "docker-compose.yml").write_text(BASE + "# x\nx-models: ${MODELS:-models}\n")
    files = (tmp_path / "docker-compose.yml", tmp_path / "docker-compose.cpu.yml")
    report = look(tmp_path, well(disk=disk), compose=files)
    assert "disk_compose_models" in faults(report)
    (tmp_path / ".env").write_text("MODELS=models\nMODEL=org/name\n")
    assert rows_of(look(tmp_path, well(disk=disk), compose=files), "disk_compose_models") == []


def test_the_model_of_the_files_and_of_env(tmp_path: Path) -> None:
    clone(tmp_path, env="MODEL=org/name\n")
    report = look(tmp_path, well())
    assert row_of(report, "model").ways == ("local",)
    assert row_of(report, "model_compose").found == (
        "org/name; LlamaForCausalLM; context 4,096 tokens; 1,024 B of KV per token; "
        "weights 3 GiB, fetched by the stack"
    )
    # the override's default is tiny, as `kvknee up` has it: one row for both
    (tmp_path / ".env").unlink()
    assert row_of(look(tmp_path, well()), "model").ways == ("compose", "local")


def test_a_model_to_be_downloaded_needs_room_in_the_hubs_cache(tmp_path: Path) -> None:
    def disk(path: Path) -> Disk:
        free = 3 * 2**30 - 1 if path == Path("/cache") else 2**40
        return Disk(path, free, None, writable=True)

    probes = well(disk=disk, environment={"HF_HOME": "/cache"})
    report = look(tmp_path, probes, local=True, model="org/name")
    assert faults(report) == ["disk_hub_cache"]
    here = commands(hub=said(json.dumps({**HUB, "weights_here": True})))
    report = look(tmp_path, well(disk=disk, run=here), local=True, model="org/name")
    assert (faults(report), rows_of(report, "disk_hub_cache")) == ([], [])
    read_only = well(disk=lambda path: Disk(path, 2**40, None, writable=path == tmp_path))
    report = look(tmp_path, read_only, local=True, model="smollm2")
    assert faults(report) == ["disk_models"]
    assert warnings(report) == []
