"""Whether a hub id can be served, found out before anything starts, in bounded time.

huggingface_hub retries for half a minute where there is no network, and a name server
that is silent cannot be interrupted. So it is asked in a process of its own
(``python -m harness.stack.hub org/name``), which is ended when its time is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.errors import UsageError

#: how long all of it may take, the import of huggingface_hub included
LOOKUP_S = 10.0
#: how long the hub may take to connect, and again to answer
_ANSWER_S = 4.0
_CONFIG = "config.json"
_WEIGHTS = ("*.safetensors", "*.bin")
_INSTEAD = "name tiny, smollm2, a model's folder, or another hub id"


def find_config(model: str, environment: Mapping[str, str], timeout_s: float = LOOKUP_S) -> Path:
    """The ``config.json`` of a hub id: in the cache beside its weights, or fetched now.

    Raises UsageError, one line with the cause, for a model that the hub does not have or
    does not give, and where the hub cannot be asked.
    """
    command = (sys.executable, "-P", "-m", "harness.stack.hub", model)
    try:
        done = subprocess.run(  # noqa: S603
            command,
            env={**environment, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"no answer within {timeout_s:g} s"
        raise UsageError(f"--model: {_unreachable(model, why)}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise UsageError(f"--model: {model} cannot be looked up on the hub ({lines[-1][:200]})")
    found = json.loads(done.stdout)
    if "problem" in found:
        raise UsageError(f"--model: {found['problem']}")
    return Path(found["config"])


def main(arguments: list[str]) -> int:
    """Print ``{"config": path}`` or ``{"problem": text}`` for the hub id that is given."""
    (model,) = arguments
    cached = _cached(model)
    print(json.dumps({"config": cached} if cached else _fetched(model)))
    return 0


def _cached(model: str) -> str | None:
    """The config in the hub's cache; None where it is missing or stands there alone."""
    # slow to import, and only this process needs it
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(model, _CONFIG)
    except HFValidationError:
        return None
    if not isinstance(path, str):
        return None
    weights = any(True for pattern in _WEIGHTS for _ in Path(path).parent.glob(pattern))
    return path if weights else None


def _fetched(model: str) -> dict[str, str]:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        # first without the retries of a download: this tells whether the hub answers
        get_hf_file_metadata(hf_hub_url(model, _CONFIG), timeout=_ANSWER_S)
        return {"config": hf_hub_download(model, _CONFIG, etag_timeout=_ANSWER_S)}
    except HFValidationError:
        problem = f"{model} is no valid hub id; {_INSTEAD}"
    except GatedRepoError:
        problem = f"{model} is gated; accept its terms on the hub and set HF_TOKEN"
    except RepositoryNotFoundError:
        problem = f"the hub has no model {model} (a private one needs HF_TOKEN); {_INSTEAD}"
    except RemoteEntryNotFoundError:
        problem = f"{model} has no {_CONFIG} on the hub; {_INSTEAD}"
    except HfHubHTTPError as error:
        problem = f"the hub does not give {model} (HTTP {error.response.status_code}); {_INSTEAD}"
    except OfflineModeIsEnabled:
        problem = _unreachable(model, "HF_HUB_OFFLINE is set")
    except Exception as error:
        # whatever the HTTP library of the day raises where there is no network
        problem = _unreachable(model, type(error).__name__)
    return {"problem": problem}


def _unreachable(model: str, why: str) -> str:
    return (
        f"{model} is neither a folder nor in the hub's cache with its weights, and the hub "
        f"cannot be reached ({why}); name tiny, smollm2 or a model's folder"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
