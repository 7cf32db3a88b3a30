"""From a plan to the command, the environment and the record of each server."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from harness.kv.modes import mode_name
from harness.stack.options import StackPlan
from harness.stack.ports import HOST
from harness.stack.process import Started
from harness.stack.state import LaunchedBackend
from servers.contiguous.settings import DEFAULT_PREFILL_CHUNK
from servers.paged.launch import PagedSettings, paged_command, paged_environment

#: vLLM's defaults on the CPU, asked for by name so that the record states them
_CPU_BLOCK_TOKENS = 128
_CPU_BATCHED_TOKENS = 2_048


@dataclass(frozen=True)
class Launch:
    """How one server is started."""

    name: str
    url: str
    log: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    kind: str
    mode: str
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    threads: int | None = None
    prefill_chunk: int | None = None

    def record(
        self, plan: StackPlan, bytes_per_token: int | None, started: Started
    ) -> LaunchedBackend:
        """What the state keeps of it once it is started."""
        return LaunchedBackend(
            name=self.name,
            url=self.url,
            pid=started.pid,
            pid_started_s=started.started_s,
            kind=self.kind,
            mode=self.mode,
            model=plan.model.name,
            model_path=plan.model.path,
            served_model_name=plan.model.served_name,
            dtype=plan.dtype,
            max_model_len=plan.max_model_len,
            max_num_seqs=plan.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_budget_bytes=plan.kv_budget_bytes,
            kv_bytes_per_token=bytes_per_token,
            block_size=self.block_size,
            log=str(self.log),
            device=plan.device,
            threads=self.threads,
            prefill_chunk=self.prefill_chunk,
            libraries=libraries(),
        )


def libraries() -> str | None:
    """Versions of what the servers compute with; they run in the Python that runs this."""
    found = []
    for name in ("torch", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found) or None


def plan_launches(plan: StackPlan, environment: Mapping[str, str]) -> tuple[Launch, ...]:
    """The servers of a plan, in the order in which they start; raises OptionError."""
    makers = {"paged": _paged, "contiguous": _contiguous}
    return tuple(makers[name](plan, environment) for name in plan.backends)


def _paged(plan: StackPlan, environment: Mapping[str, str]) -> Launch:
    on_cpu = plan.device == "cpu"
    settings = PagedSettings(
        model=plan.model.path,
        served_model_name=plan.model.served_name,
        host=HOST,
        port=plan.port("paged"),
        device=plan.device,
        dtype=plan.dtype,
        max_model_len=plan.max_model_len,
        kv_budget_bytes=plan.kv_budget_bytes,
        gpu_memory_utilization=plan.gpu_memory_utilization,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=(
            # vLLM refuses a token budget below the number of sequences
            max(_CPU_BATCHED_TOKENS, plan.max_num_seqs) if on_cpu else None
        ),
        block_size=_CPU_BLOCK_TOKENS if on_cpu else None,
        threads=plan.threads,
        local_files_only=plan.model.local,
    )
    return Launch(
        name="paged",
        url=f"http://{HOST}:{settings.port}",
        log=plan.home / "logs" / "paged.log",
        command=paged_command(settings),
        environment=paged_environment(settings, environment),
        kind="vllm",
        mode="paged",
        max_num_batched_tokens=settings.max_num_batched_tokens,
        block_size=settings.block_size,
        threads=plan.threads if on_cpu else None,
    )


def _contiguous(plan: StackPlan, environment: Mapping[str, str]) -> Launch:
    port = plan.port("contiguous")
    flags = {
        "--model": plan.model.path,
        "--served-model-name": plan.model.served_name,
        "--host": HOST,
        "--port": port,
        "--dtype": plan.dtype,
        "--max-model-len": plan.max_model_len,
        "--cache": plan.cache,
        "--reserve": plan.reserve,
        "--batching": plan.batching,
        "--kv-budget": plan.kv_budget_bytes,
        "--max-num-seqs": plan.max_num_seqs,
        "--prefill-chunk": DEFAULT_PREFILL_CHUNK,
        "--device": "cuda" if plan.device == "gpu" else "cpu",
    }
    if plan.batch_size is not None:
        flags["--batch-size"] = plan.batch_size
    if plan.device == "cpu":
        flags["--threads"] = plan.threads
    given = [text for flag, value in flags.items() for text in (flag, str(value))]
    offline = {"HF_HUB_OFFLINE": "1"} if plan.model.local else {}
    return Launch(
        name="contiguous",
        url=f"http://{HOST}:{port}",
        log=plan.home / "logs" / "contiguous.log",
        command=(sys.executable, "-P", "-m", "servers.contiguous", *given),
        environment={**environment, **offline},
        kind="contiguous",
        mode=mode_name(plan.cache, plan.reserve, plan.batching),
        threads=plan.threads if plan.device == "cpu" else None,
        prefill_chunk=DEFAULT_PREFILL_CHUNK,
    )
