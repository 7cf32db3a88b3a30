"""KV bytes per token of a server that does not state them, from its model's config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from harness.errors import ModelConfigError
from harness.kv.bytes import kv_bytes_per_token
from harness.kv.spec import read_spec
from harness.manifest import BackendInfo
from harness.model_source import read_model
from harness.stack.state import LaunchedBackend

#: From a KV dtype (``auto``: the model's own) to bytes per token.
TokenBytes = Callable[[str], int]
Config = Mapping[str, object]


def token_bytes(model_config: str) -> TokenBytes:
    """Read a config.json, a folder or a hub id; raises ModelConfigError."""
    try:
        spec = read_spec(read_model(model_config).config)
    except ModelConfigError as error:
        raise ModelConfigError(f"--model-config: {error}") from error
    if spec.status != "known":
        raise ModelConfigError(
            f"--model-config: {model_config}: the KV cache of this architecture is not known"
        )
    return lambda dtype: kv_bytes_per_token(spec, dtype)


def known_config(launch: LaunchedBackend | None, model_config: str | None) -> Config | None:
    """The config of a backend's model: of the folder it was launched with, else as named.

    None where neither is known; raises ModelConfigError for a named one that cannot be read.
    """
    if launch is not None and (Path(launch.model_path) / "config.json").is_file():
        try:
            return read_model(launch.model_path).config
        except ModelConfigError:
            # the server reads it all the same; only what is computed from it is missing
            return None
    return read_model(model_config).config if model_config is not None else None


def stated_or_computed(info: BackendInfo, computed: TokenBytes | None) -> BackendInfo:
    """The backend with its KV bytes per token, unless they stay unknown.

    What the server or its launch states is never overruled.
    """
    if info.kv_bytes_per_token is not None or computed is None:
        return info
    return msgspec.structs.replace(info, kv_bytes_per_token=computed(info.dtype or "auto"))
