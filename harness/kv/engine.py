"""vLLM's settings that decide how much KV cache it sets aside, with its defaults.

Sources: vLLM 0.32: ``EngineArgs.get_batch_defaults`` (batched tokens and sequences by
device memory), ``CacheConfig`` and the platforms' block sizes, ``VllmConfig``
(``max_concurrent_batches``, hybrid KV cache manager), ``ModelConfig`` (dtype, length).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.errors import OptionError
from harness.kv.layers import LayerKind
from harness.kv.spec import ModelSpec
from harness.kv.units import counted

Device = Literal["gpu", "cpu"]
GIB = 2**30


@dataclass(frozen=True)
class EngineOptions:
    """What the user set; None leaves vLLM's default."""

    device: Device = "gpu"
    tp: int = 1
    #: memory of one device, which some defaults depend on
    device_bytes: int | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    async_scheduling: bool | None = None
    hybrid_manager: bool | None = None
    prefix_caching: bool | None = None
    #: of recurrent states, as vLLM's --mamba-ssm-cache-dtype
    state_dtype: str | None = None


@dataclass(frozen=True)
class Engine:
    """Settings in force, and how each default came about."""

    device: Device
    tp: int
    max_model_len: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    #: batches in flight: 2 with asynchronous scheduling
    batches: int
    #: whether windows save memory; without it they are allocated as full attention
    hybrid_manager: bool
    prefix_caching: bool
    #: defaults in words, for the reader
    stated: tuple[str, ...]

    @property
    def in_flight_tokens(self) -> int:
        """Tokens scheduled but not settled: windows cannot be freed below them yet."""
        return self.batches * self.max_num_batched_tokens


def resolve_engine(spec: ModelSpec, options: EngineOptions) -> Engine:
    """Fill in vLLM's defaults; raises OptionError for a context that the model lacks."""
    stated: list[str] = []
    kinds: set[LayerKind] = {layer.kind for layer in spec.layers}
    length = _max_model_len(spec, options, stated)
    seqs = _max_num_seqs(options)
    tokens = _batched_tokens(options, kinds, length, seqs, stated)
    if options.max_num_seqs is None:
        seqs = min(seqs, tokens)
        stated.append(f"max_num_seqs {seqs:,} (vLLM's default for this device)")
    asynchronous = options.async_scheduling
    if asynchronous is None or options.device == "cpu":
        asynchronous = options.device == "gpu"
        state = "on" if asynchronous else "off, always so on the CPU"
        flying = counted(1 + asynchronous, "batch", "batches")
        stated.append(f"asynchronous scheduling {state}: {flying} in flight")
    return Engine(
        device=options.device,
        tp=options.tp,
        max_model_len=length,
        block_size=_block_size(options, kinds, stated),
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        batches=2 if asynchronous else 1,
        hybrid_manager=options.hybrid_manager is not False,
        prefix_caching=_prefix_caching(options, kinds, stated),
        stated=tuple(stated),
    )


def _max_model_len(spec: ModelSpec, options: EngineOptions, stated: list[str]) -> int:
    longest = spec.max_positions
    if options.max_model_len is not None:
        if longest is not None and options.max_model_len > longest:
            raise OptionError(
                "--max-model-len",
                options.max_model_len,
                f"at most the model's {counted(longest, 'token')}",
            )
        return options.max_model_len
    if longest is None:
        stated.append("max_model_len 2,048 (vLLM's fallback: the config states no length)")
        return 2048
    stated.append(f"max_model_len {longest:,} (from the config)")
    return longest


def _max_num_seqs(options: EngineOptions) -> int:
    if options.max_num_seqs is not None:
        return options.max_num_seqs
    if options.device == "cpu":
        return 128 * options.tp
    return 1024 if (options.device_bytes or 0) >= 70 * GIB else 256


def _batched_tokens(
    options: EngineOptions, kinds: set[LayerKind], length: int, seqs: int, stated: list[str]
) -> int:
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    memory = options.device_bytes or 0
    tokens, why = 2048, "vLLM's default for a server on a GPU below 70 GiB"
    if options.device == "cpu":
        tokens, why = 2048 * options.tp, "vLLM's default for a server on the CPU"
    elif memory >= 160 * GIB:
        tokens, why = 16384, "vLLM's default for a GPU of 160 GiB or more"
    elif memory >= 70 * GIB:
        tokens, why = 8192, "vLLM's default for a GPU of 70 GiB or more; 2,048 on an A100"
    if "cross" in kinds or ("latent" in kinds and options.device == "cpu"):
        # no chunked prefill: a whole prompt must fit one batch
        tokens, why = max(length, 2048), "no chunked prefill for this model: a whole prompt"
    tokens = min(tokens, seqs * length)
    stated.append(f"max_num_batched_tokens {tokens:,} ({why})")
    return tokens


def _block_size(options: EngineOptions, kinds: set[LayerKind], stated: list[str]) -> int:
    if options.block_size is not None:
        return options.block_size
    if "latent" in kinds:
        size, why = (64, "the usual MLA kernels' block; --block-size when yours differs")
        if options.device == "cpu":
            size, why = 16, "vLLM's CPU MLA kernel without AMX; 128 with it"
    elif options.device == "cpu":
        size, why = 128, "vLLM's default on the CPU"
    else:
        size, why = 16, "vLLM's default on a GPU"
    stated.append(f"block size {counted(size, 'token')} ({why})")
    return size


def _prefix_caching(options: EngineOptions, kinds: set[LayerKind], stated: list[str]) -> bool:
    if "cross" in kinds or not kinds - {"state"}:
        return False
    on = options.prefix_caching is not False
    if "state" in kinds:
        held = "the last two states, and a checkpoint of Mamba-2" if on else "one state"
        stated.append(f"prefix caching {'on' if on else 'off'}: a request holds {held}")
    return on
