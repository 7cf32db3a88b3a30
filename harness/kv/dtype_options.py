"""The dtypes that a plan counts with: from flags, from the config, and by vLLM's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.errors import ModelConfigError, OptionError
from harness.kv.dtypes import PLAIN_BITS
from harness.kv.engine import EngineOptions
from harness.kv.fields import short
from harness.kv.spec import ModelSpec

#: what models run in
_RUN = tuple(name for name, bits in PLAIN_BITS.items() if bits >= 16)
_RUN_32 = tuple(name for name in _RUN if PLAIN_BITS[name] == 32)
#: weights may be stored in these; engines compute in 16 bit then
_STORED_ONLY = ("float64", "double", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
#: vLLM 0.32's --mamba-ssm-cache-dtype, and short names as everywhere here
_STATES = ("auto", "float32", "float16", "bfloat16", "fp32", "fp16", "bf16")


def with_dtype(spec: ModelSpec, asked: str, warnings: list[str]) -> ModelSpec:
    """The weights' dtype that the engine runs: vLLM's ``auto`` never runs in float32.

    Raises OptionError for a flag, and ModelConfigError for a config, that names no dtype.
    """
    if asked != "auto":
        if asked not in _RUN:
            raise OptionError("--dtype", asked, f"one of auto, {', '.join(_RUN)}")
        return replace(spec, dtype=asked)
    stated = (spec.dtype or "").removeprefix("torch.")
    if stated in ("", "auto", *_RUN_32):
        warnings.append(
            f"the config's dtype is {stated or 'not stated'}: vLLM's auto runs it in bfloat16; "
            "--dtype float32 when yours keeps 32 bits"
        )
        return replace(spec, dtype="bfloat16")
    if stated in _STORED_ONLY:
        warnings.append(
            f"the config's dtype is {stated}, which vLLM does not run in: it falls back to bfloat16"
        )
        return replace(spec, dtype="bfloat16")
    if stated not in _RUN:
        raise ModelConfigError(
            f"config: its dtype is {short(stated)}; expected float16, bfloat16 or float32, or "
            "--dtype beside it"
        )
    return replace(spec, dtype=stated)


def with_state_dtype(spec: ModelSpec, options: EngineOptions, warnings: list[str]) -> ModelSpec:
    """Recurrent states in the dtype that was asked for, or that vLLM takes on this device.

    Raises OptionError for an unknown dtype, whatever the model.
    """
    dtype = options.state_dtype
    if dtype is not None and dtype not in _STATES:
        raise OptionError("--mamba-ssm-cache-dtype", dtype, f"one of {', '.join(_STATES)}")
    if not spec.has_recurrent_states:
        return spec
    if dtype is None and options.device == "cpu":
        dtype = "float32"
        warnings.append(
            "recurrent states count as float32: vLLM's choice on CPUs with AVX512-BF16; "
            "--mamba-ssm-cache-dtype for another"
        )
    if dtype is None or dtype == "auto":
        return spec
    return replace(spec, layers=tuple(layer.with_state_dtype(dtype) for layer in spec.layers))


def stored_kv_dtype(config: Mapping[str, object], asked: str, warnings: list[str]) -> str:
    """The KV dtype that ``auto`` means: a quantised checkpoint may bring one.

    As vLLM 0.32 reads it (``resolve_kv_cache_dtype_string``, and the attention layer's
    ``kv_cache_scheme``). Raises ModelConfigError for one that is not known here.
    """
    quantised = config.get("quantization_config")
    if asked != "auto" or not isinstance(quantised, Mapping):
        return asked
    inner = quantised.get("quantization")
    places = [inner, quantised] if isinstance(inner, Mapping) else [quantised]
    names = ("kv_cache_scheme", "kv_cache_quant_algo")
    stated = next((place[name] for name in names for place in places if place.get(name)), None)
    if stated is None:
        return asked
    if _is_fp8(stated):
        warnings.append(
            "the checkpoint's quantization_config keeps K and V in fp8, which vLLM's auto takes; "
            "--kv-dtype for another"
        )
        return "fp8"
    raise ModelConfigError(
        f"quantization_config: its KV cache scheme is {short(stated)}, which is not known here; "
        "name one by --kv-dtype"
    )


def _is_fp8(stated: object) -> bool:
    if isinstance(stated, Mapping):
        return stated.get("num_bits") == 8 and stated.get("type") == "float"
    return isinstance(stated, str) and stated.lower() in ("fp8", "fp8_e4m3")
