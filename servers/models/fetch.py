"""Bring a model into a folder: ``python -m servers.models.fetch MODEL FOLDER``.

The containers' way: one process makes (``tiny``, ``smollm2``) or downloads (a hub id) the
model before any server starts, so that the servers need neither the network nor a token,
and none of them loses its start to a download. The model lies in ``FOLDER/MODEL``; one that
is there already is used as it is, so any model can be put there by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from servers.models.__main__ import MAKERS, make_model
from servers.models.smollm2 import MissingWeights

#: what a server reads of a repository: config, tokenizer and one format of weights
PATTERNS = ("*.json", "*.jinja", "*.model", "*.txt", "*.safetensors")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class FetchError(Exception):
    """The model cannot be had; the message is one line that says why and what to do."""


def fetch_model(model: str, models: Path) -> Path:
    """The folder of ``model`` in ``models``, filled if it was not; raises FetchError."""
    folder = models / model
    inside = models.resolve() in folder.resolve().parents
    if inside and (folder / "config.json").is_file() and not _mark(model, models).exists():
        return folder
    try:
        if model in MAKERS:
            make_model(model, folder)
        elif _HUB_ID.fullmatch(model):
            _download(model, models)
        else:
            raise FetchError(
                f"MODEL={model!r} is neither {' nor '.join(MAKERS)}, nor a hub id such as "
                f"org/name, nor a folder in {models} with a config.json"
            )
    except (MissingWeights, ImportError) as error:
        raise FetchError(f"MODEL={model}: {error}") from error
    except OSError as error:
        raise FetchError(f"MODEL={model}: {_first_line(error)} (in {models})") from error
    return folder


def _download(model: str, models: Path) -> None:
    """All files that a server reads; a download that was cut off goes on where it stood."""
    from huggingface_hub import snapshot_download

    _require_hub(model)
    folder, mark = models / model, _mark(model, models)
    mark.touch()
    snapshot_download(model, local_dir=folder, allow_patterns=list(PATTERNS))
    if not (folder / "config.json").is_file():
        raise FetchError(f"MODEL={model}: has no config.json, so it is no model to serve")
    for path in (folder, *folder.rglob("*")):
        # readable for servers that run as another user, whatever the umask
        path.chmod(0o755 if path.is_dir() else 0o644)
    mark.unlink()


def _require_hub(model: str) -> None:
    """Raises FetchError unless the hub gives the model to us.

    Asked before the download, which takes an unreachable hub for a reason to be content
    with whatever lies in the folder.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(model)
    except HfHubHTTPError as error:
        raise FetchError(
            f"MODEL={model}: the hub refuses it ({_first_line(error)}); check the id, and set "
            "HF_TOKEN for a model that asks for one"
        ) from error
    except Exception as error:
        # whatever its HTTP library raises for a name, a connection, a certificate, a timeout
        raise FetchError(
            f"MODEL={model}: the hub cannot be reached ({_first_line(error)}); MODEL=tiny needs "
            "no download"
        ) from error


def _mark(model: str, models: Path) -> Path:
    """There while a download is incomplete: config.json alone, which comes early, does not tell."""
    return models / f".partial-{model.replace('/', '--')}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when the model is there, 1 when it cannot be had, 2 for bad input."""
    if len(arguments) != 2:
        print("usage: python -m servers.models.fetch MODEL FOLDER", file=sys.stderr)
        return 2
    model, models = arguments[0], Path(arguments[1])
    if not models.is_dir():
        print(f"error: {models} is no folder", file=sys.stderr)
        return 2
    try:
        folder = fetch_model(model, models)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{model} is in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
