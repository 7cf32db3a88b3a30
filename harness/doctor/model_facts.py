"""Whether a model can be had, and what its config says of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.doctor.bounded import Run
from harness.doctor.facts import BadModel, HeldModel, Model, Unknown
from harness.doctor.hub_config import REFUSALS
from harness.errors import KvkneeError
from harness.kv.bytes import kv_bytes_per_token
from harness.kv.spec import read_spec
from harness.model_source import read_model
from harness.stack.models import BUILT_IN, choose_model

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_HUB_REMEDIES: Mapping[str, tuple[str, str]] = {
    "GatedRepoError": (
        "is gated: its owner grants access person by person",
        "accept its terms on the hub's page of the model, then set HF_TOKEN",
    ),
    "RepositoryNotFoundError": (
        "is not on the hub, or is private",
        "check its spelling (org/name); for a private one set HF_TOKEN",
    ),
    "EntryNotFoundError": (
        "has no config.json on the hub (files of llama.cpp alone, or an adapter)",
        "name the model that it was made from",
    ),
}


def read_held(model: str, home: Path, run: Run) -> Model:
    """What ``--model`` means here, without making or downloading its weights."""
    try:
        choice = choose_model(model, home)
        if choice.built_in and not (Path(choice.path) / "config.json").is_file():
            return HeldModel(choice.name, made_here=True)
        if not choice.local:
            return _from_hub(choice.path, run)
        return _from_folder(choice.name, Path(choice.path))
    except KvkneeError as error:
        return BadModel(model, str(error), "name a model that is there with --model")


def _from_folder(name: str, folder: Path) -> Model:
    try:
        source = read_model(str(folder))
        weights = source.weights()
    except KvkneeError as error:
        return BadModel(name, str(error).removesuffix("; or give --weights SIZE"), _REFETCH)
    if weights is None:
        return BadModel(name, f"{folder} holds no safetensors weights", _REFETCH)
    return described(name, source.config, weights_bytes=weights[0], weights_here=True)


_REFETCH = "fetch the model's files again, all of them"


def described(name: str, config: Mapping[str, Any], **known: Any) -> Model:
    """The facts of a config; what it does not tell stays None."""
    try:
        spec = read_spec(config)
        known["kv_bytes_per_token"] = kv_bytes_per_token(spec)
    except KvkneeError as error:
        return BadModel(name, str(error), "name a model that generates text")
    return HeldModel(
        name, architecture=spec.architecture, context_tokens=spec.max_positions, **known
    )


def read_of_compose(model: str, models: Path | None, token: str | None, run: Run) -> Model:
    """What MODEL of the Compose files means to their service that makes or fetches it.

    ``models`` is where the containers keep their models, None when that is a volume: then a
    model which is none of the hub cannot be seen from here. ``token`` is what they show to
    the hub.
    """
    if models is not None and (models / model / "config.json").is_file():
        return _from_folder(model, models / model)
    if model in BUILT_IN:
        return HeldModel(model, made_here=True)
    if not HUB_ID.fullmatch(model):
        if models is not None:
            problem = "MODEL is neither tiny nor smollm2, a hub id, nor a folder in MODELS"
            return BadModel(model, f"{problem} with a config.json", f"see what lies in {models}")
        return Unknown("it has to be a folder in the stack's volume (MODELS in .env)")
    return _from_hub(model, run, {"HF_TOKEN": token} if token else {})


def _from_hub(model: str, run: Run, extra: Mapping[str, str] | None = None) -> Model:
    """The hub may hang for minutes: a process of its own asks it."""
    answer = run([sys.executable, "-P", "-m", "harness.doctor.hub_config", model], extra)
    if isinstance(answer, Unknown):
        return answer
    try:
        told = json.loads(answer.out.splitlines()[-1])
    except (ValueError, IndexError):
        lines = answer.error.strip().splitlines() or ["no message"]
        return Unknown(f"the hub could not be asked: {lines[-1][:120]}")
    if told["error"] in REFUSALS:
        problem, remedy = _HUB_REMEDIES[told["error"]]
        return BadModel(model, f"{model} {problem}", remedy)
    if told["config"] is None:
        return BadModel(
            model,
            f"{model} is not in the hub's cache here, and the hub cannot be reached",
            "go online (is HF_HUB_OFFLINE set?), or name a model's folder",
            unreachable=True,
        )
    return described(
        model,
        told["config"],
        weights_bytes=told["weights_bytes"],
        weights_here=told["weights_here"],
        offline=told["offline"],
    )
