"""Which model the stack serves: a built-in one, a folder, or a hub id."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ModelConfigError, OptionError, StackError, UsageError
from harness.kv.bytes import kv_bytes_per_token
from harness.kv.spec import read_spec
from harness.stack.hub import find_config

#: name -> the KV budget that shows a knee at few requests (bytes)
BUILT_IN: Mapping[str, int] = {"tiny": 16 * 2**20, "smollm2": 256 * 2**20}
#: the KV budget of any other model (bytes)
OTHER_BUDGET_BYTES = 2**30

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelChoice:
    """A model as the engines are told of it."""

    #: as it was asked for; a folder as its full path
    name: str
    #: a folder, or a hub id that the engines resolve
    path: str
    served_name: str
    #: its files are (or will be) on this machine
    local: bool
    built_in: bool


def choose_model(text: str, home: Path) -> ModelChoice:
    """What ``--model`` means; raises OptionError when it is nothing that can be served."""
    if text in BUILT_IN:
        return ModelChoice(text, str((home / "models" / text).resolve()), text, True, True)
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise OptionError("--model", text, "a folder with a config.json")
        path = str(folder.resolve())
        return ModelChoice(path, path, folder.resolve().name, True, False)
    if _HUB_ID.fullmatch(text):
        return ModelChoice(text, text, text, False, False)
    near = difflib.get_close_matches(text, BUILT_IN, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise OptionError(
        "--model", text, f"tiny, smollm2, a model's folder, or a hub id such as org/name{hint}"
    )


def make_if_missing(choice: ModelChoice) -> bool:
    """Make a built-in model on first use; True when it was made now.

    In a process of its own: its needs (transformers, torch) are the servers', not the
    harness's. Raises StackError with that process's last line.
    """
    if not choice.built_in or (Path(choice.path) / "config.json").is_file():
        return False
    command = (sys.executable, "-P", "-m", "servers.models", choice.name, choice.path)
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise StackError(f"the model {choice.name} could not be made: {lines[-1]}")
    return True


def config_path(choice: ModelChoice, environment: Mapping[str, str]) -> Path:
    """Where the model's ``config.json`` lies; a hub id's is looked up, and fetched if need be.

    Raises UsageError for a hub id that cannot be had.
    """
    if choice.local:
        return Path(choice.path) / "config.json"
    return find_config(choice.path, environment)


def read_config(path: Path) -> Mapping[str, object]:
    """A model's ``config.json``; raises ModelConfigError for a file that is no JSON object."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelConfigError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelConfigError(f"{path}: expected a JSON object")
    return config


@dataclass(frozen=True)
class ModelFacts:
    """What the config says that the stack's settings depend on; None: not known."""

    kv_bytes_per_token: int | None
    max_positions: int | None


def model_facts(config: Mapping[str, object], dtype: str) -> ModelFacts:
    """Facts of a config whose architecture is known; no guess about any other."""
    try:
        spec = read_spec(config)
        known = spec.status == "known"
        size = kv_bytes_per_token(spec, dtype) if known else None
    except UsageError:
        # the engines may still serve it; what they say of themselves is used instead
        return ModelFacts(None, None)
    return ModelFacts(size, spec.max_positions)
