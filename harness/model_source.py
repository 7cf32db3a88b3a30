"""Where a model's config and its weights' size are read from: a file, a folder, or the hub."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ModelConfigError, printable, shortened
from harness.kv.fields import short
from harness.sizes import MAX_BYTES

INDEX = "model.safetensors.index.json"
#: a header is JSON of a few MB at most; more means that the file is something else
MAX_HEADER_BYTES = 100 * 2**20
#: the same for a config and an index, which are read whole
MAX_JSON_BYTES = 100 * 2**20
#: how a file begins that Git LFS has not fetched
LFS_POINTER = b"version https://git-lfs"
_LFS = "a Git LFS pointer, not the file itself; run git lfs pull"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class ModelSource:
    """A parsed config, and where the files lie that tell the size of the weights."""

    name: str
    config: dict[str, Any]
    #: the folder of a local model; None for one of the hub
    folder: Path | None = None

    def weights(self) -> tuple[int, str] | None:
        """Bytes of the weights and where that was read; None when no file tells.

        Read on demand, so that damaged weights do not stop a plan that needs none.
        Raises ModelConfigError for a file that makes no sense.
        """
        if self.folder is not None:
            return stored_weights(self.folder)
        return _hub_weights(self.name)


def read_model(model: str) -> ModelSource:
    """Read ``config.json`` of a file, a folder or a hub id; raises ModelConfigError."""
    if not model:
        raise ModelConfigError("MODEL is empty; name a config.json, a folder or a hub id")
    path, shown = Path(model), _shown(model)
    try:
        if path.is_dir():
            path = path / "config.json"
            if not path.is_file():
                raise ModelConfigError(f"{shown}: the folder has no config.json")
        found, other = path.is_file(), path.exists()
    except OSError as error:
        raise ModelConfigError(
            f"{shown}: cannot be read ({error.strerror}); name a config.json, a folder or a hub id"
        ) from error
    if found:
        return ModelSource(model, read_config(path), path.parent)
    if other:
        raise ModelConfigError(
            f"{shown}: no regular file; name a config.json, a folder or a hub id"
        )
    if path.suffix == ".json" or path.is_absolute() or not _HUB_ID.fullmatch(model):
        raise ModelConfigError(f"{shown}: no such file; name a config.json, a folder or a hub id")
    return _from_hub(model)


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises ModelConfigError when it is none."""
    parsed = _read_json(path)
    if not isinstance(parsed, dict):
        raise ModelConfigError(f"{_shown(path)}: no model config (a JSON object is expected)")
    return parsed


def _read_json(path: Path) -> object:
    shown = _shown(path)
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelConfigError(f"{shown}: too large for a config or an index ({size:,} B)")
        raw = path.read_bytes()
        if raw.startswith(LFS_POINTER):
            raise ModelConfigError(f"{shown}: {_LFS}")
        return json.loads(raw)
    except OSError as error:
        raise ModelConfigError(f"{shown}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{shown}: not JSON ({_one_line(error)})") from error


def stored_weights(folder: Path) -> tuple[int, str] | None:
    """Bytes of the weights in a folder, from the index or the headers of its safetensors.

    An index decides; without one, ``model*.safetensors`` count where there are several
    files, because a second copy (``consolidated*``) or an adapter may lie beside them.
    Raises ModelConfigError that names the file and says that --weights replaces it.
    """
    try:
        index = folder / INDEX
        if index.is_file():
            return _indexed(index)
        files = _weight_files(folder)
        if not files:
            return None
        return _headers(files)
    except OSError as error:
        raise ModelConfigError(
            f"{_shown(folder)}: its weights cannot be read ({error.strerror}); "
            "or give --weights SIZE"
        ) from error
    except ModelConfigError as error:
        raise ModelConfigError(f"{error}; or give --weights SIZE") from error


def _weight_files(folder: Path) -> list[Path]:
    files = [
        path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("adapter")
    ]
    model = [path for path in files if path.name.startswith("model")]
    other = [path for path in files if not path.name.startswith("consolidated")]
    return model or other or files


def _indexed(index: Path) -> tuple[int, str]:
    """The size that an index states; else that of the files which it lists."""
    content = _read_json(index)
    metadata = content.get("metadata") if isinstance(content, dict) else None
    if isinstance(metadata, dict) and "total_size" in metadata:
        total = metadata["total_size"]
        if isinstance(total, float) and total.is_integer():
            total = int(total)
        if not _is_whole(total) or not 1 <= total <= MAX_BYTES:
            raise ModelConfigError(
                f"{_shown(index)}: total_size is {short(total)}; expected bytes, 1 to 2^60"
            )
        return total, f"total_size of {INDEX}"
    listed = content.get("weight_map") if isinstance(content, dict) else None
    names = set(listed.values()) if isinstance(listed, dict) and _are_names(listed) else set()
    if not names:
        raise ModelConfigError(
            f"{_shown(index)}: no index (it has neither total_size nor a weight_map)"
        )
    size, source = _headers([index.parent / name for name in sorted(names)])
    return size, f"{source} (listed in {INDEX})"


def _are_names(listed: dict[str, Any]) -> bool:
    return all(isinstance(name, str) and Path(name).name == name for name in listed.values())


def _headers(files: list[Path]) -> tuple[int, str]:
    total = sum(_tensor_bytes(path) for path in files)
    if total > MAX_BYTES:
        raise ModelConfigError(f"{_shown(files[0].parent)}: its tensors take more than 2^60 bytes")
    if len(files) == 1:
        return total, f"header of {files[0].name}"
    return total, f"headers of {len(files)} files, {files[0].name} to {files[-1].name}"


def _tensor_bytes(path: Path) -> int:
    """Sum of the tensors of one file: the header is a length and a JSON table of offsets."""
    shown = _shown(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
            if start == LFS_POINTER:
                raise ModelConfigError(f"{shown}: {_LFS}")
            (length,) = struct.unpack("<Q", start[:8])
            if length > MAX_HEADER_BYTES:
                raise ValueError("its header is too long")
            file.seek(8)
            header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is no JSON object")
        total = sum(_span(entry) for name, entry in header.items() if name != "__metadata__")
    except OSError as error:
        raise ModelConfigError(f"{shown}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError, struct.error) as error:
        raise ModelConfigError(f"{shown}: no safetensors file ({_one_line(error)})") from error
    if not 1 <= total <= MAX_BYTES:
        problem = "no tensors" if total == 0 else "more than 2^60 bytes of tensors"
        raise ModelConfigError(f"{shown}: no safetensors file (its header lists {problem})")
    return total


def _span(entry: object) -> int:
    """Bytes of one tensor; ValueError when its offsets are no range."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_whole, offsets)):
        raise ValueError("a tensor has no two whole data_offsets")
    begin, end = offsets
    if not 0 <= begin <= end:
        raise ValueError(f"data_offsets {short(offsets)} are no range")
    return int(end - begin)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _from_hub(model: str) -> ModelSource:
    try:
        # slow to import and not needed for local files
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ModelConfigError(
            f"{_shown(model)}: no such file, and huggingface_hub is not installed to read it "
            "from the hub"
        ) from None
    try:
        path = Path(hf_hub_download(model, "config.json"))
    except Exception as error:
        raise ModelConfigError(
            f"{_shown(model)}: no such file, and the hub cannot be read ({type(error).__name__}); "
            "download config.json and name it"
        ) from error
    return ModelSource(model, read_config(path))


def _hub_weights(model: str) -> tuple[int, str] | None:
    """What the index on the hub states; most small models have none."""
    # slow to import and not needed for local files
    from huggingface_hub import hf_hub_download

    try:
        index = Path(hf_hub_download(model, INDEX))
    except Exception:
        # without an index the size is computed from the config instead
        return None
    try:
        return _indexed(index)
    except ModelConfigError as error:
        raise ModelConfigError(f"{error}; or give --weights SIZE") from error


def _shown(path: object) -> str:
    """A name for an error: one line, whatever the file is called."""
    return shortened(printable(str(path)), 200)


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split()))[:120] or type(error).__name__
