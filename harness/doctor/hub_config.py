"""Ask the model hub for a model's config, in a process that can be ended in time.

``python -m harness.doctor.hub_config ORG/NAME`` prints one JSON object: ``config`` (or
null), ``error`` (the hub's kind of refusal, or null), ``offline``, ``weights_bytes``,
``weights_here``. Nothing but the config is downloaded.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from harness.model_source import INDEX

CONFIG = "config.json"
#: seconds for each question to the hub
_HUB_S = 5.0
#: refusals that the hub itself gave; anything else means that it is out of reach
REFUSALS = ("GatedRepoError", "RepositoryNotFoundError", "EntryNotFoundError")


def ask(model: str) -> dict[str, Any]:
    """All that the hub and its cache on this machine tell of a model."""
    # slow to import
    from huggingface_hub import constants

    error = None
    offline = bool(constants.HF_HUB_OFFLINE)
    if not offline:
        error = _refusal(model)
        offline = error == ""
    path = None if error else _config_path(model, offline)
    return {
        "config": None if path is None else json.loads(Path(path).read_bytes()),
        "error": error or None,
        "offline": offline,
        "weights_bytes": None if error or offline else _weights_bytes(model),
        "weights_here": any(_cached(model, name) for name in (INDEX, "model.safetensors")),
    }


def _refusal(model: str) -> str | None:
    """The hub's refusal; "" when it is out of reach, None when it has the config."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(model, CONFIG), timeout=_HUB_S)
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return next((name for name in REFUSALS if name in kinds), "")
    return None


def _config_path(model: str, offline: bool) -> str | None:
    from huggingface_hub import hf_hub_download

    if offline:
        return _cached(model, CONFIG)
    try:
        return str(hf_hub_download(model, CONFIG, etag_timeout=_HUB_S))
    except Exception:
        # it answered a moment ago; what is here already is all there is now
        return _cached(model, CONFIG)


def _cached(model: str, name: str) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, name)
    return found if isinstance(found, str) else None


def _weights_bytes(model: str) -> int | None:
    """Bytes of the weights' files as the hub lists them."""
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):
        files = HfApi().model_info(model, files_metadata=True, timeout=_HUB_S).siblings or []
        for ending in (".safetensors", ".bin"):
            sizes = [file.size or 0 for file in files if file.rfilename.endswith(ending)]
            if sum(sizes):
                return sum(sizes)
    return None


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1])))
