"""Where a model's config and its weights' size are read from: a file, a folder, or the hub."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ModelConfigError

INDEX = "model.safetensors.index.json"
#: a header is JSON of a few MB at most; more means that the file is something else
MAX_HEADER_BYTES = 100 * 2**20
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class ModelSource:
    """A parsed config, and the size of the weights when a file beside it tells."""

    name: str
    config: dict[str, Any]
    weights_bytes: int | None = None
    weights_source: str = ""


def read_model(model: str) -> ModelSource:
    """Read ``config.json`` of a file, a folder or a hub id; raises ModelConfigError."""
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ModelConfigError(f"{model}: the folder has no config.json")
    if path.is_file():
        found = stored_weights(path.parent)
        return ModelSource(model, read_config(path), *(found or (None, "")))
    if path.suffix == ".json" or path.is_absolute() or not _HUB_ID.fullmatch(model):
        raise ModelConfigError(f"{model}: no such file; name a config.json, a folder or a hub id")
    return _from_hub(model)


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises ModelConfigError when it is none."""
    try:
        parsed = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path}: not JSON ({_one_line(error)})") from error
    if not isinstance(parsed, dict):
        raise ModelConfigError(f"{path}: no model config (a JSON object is expected)")
    return parsed


def stored_weights(folder: Path) -> tuple[int, str] | None:
    """Bytes of the weights in a folder, from the index or the headers of its safetensors."""
    index = folder / INDEX
    if index.is_file():
        metadata = read_config(index).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        if isinstance(total, int) and total > 0:
            return total, f"total_size of {INDEX}"
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    return sum(_tensor_bytes(path) for path in files), "headers of the safetensors files"


def _tensor_bytes(path: Path) -> int:
    """Sum of the tensors of one file: the header is a length and a JSON table of offsets."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
        return sum(
            entry["data_offsets"][1] - entry["data_offsets"][0]
            for name, entry in header.items()
            if name != "__metadata__"
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        struct.error,
    ) as e:
        raise ModelConfigError(f"{path}: no safetensors file ({_one_line(e)})") from e


def _from_hub(model: str) -> ModelSource:
    try:
        # slow to import and not needed for local files
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ModelConfigError(
            f"{model}: no such file, and huggingface_hub is not installed to read it from the hub"
        ) from None
    try:
        path = Path(hf_hub_download(model, "config.json"))
    except Exception as error:
        raise ModelConfigError(
            f"{model}: no such file, and the hub cannot be read ({type(error).__name__}); "
            "download config.json and name it"
        ) from error
    try:
        index = read_config(Path(hf_hub_download(model, INDEX)))
        return ModelSource(model, read_config(path), index["metadata"]["total_size"], INDEX)
    except Exception:
        # most small models have no index: their size is computed from the config instead
        return ModelSource(model, read_config(path))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
