"""What ``kvknee up`` is asked, and what that comes to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import OptionError
from harness.kv.mode_options import check_mode_options
from harness.records import Scalar
from harness.sizes import exact_size, parse_size
from harness.stack.models import (
    BUILT_IN,
    OTHER_BUDGET_BYTES,
    ModelChoice,
    ModelFacts,
    choose_model,
)

BACKENDS = ("paged", "contiguous")
CacheMode = Literal["off", "dynamic", "static", "quantized", "sliding"]


@dataclass(frozen=True)
class UpOptions:
    """The options of ``kvknee up`` as they were given; None asks for the default."""

    home: Path
    model: str = "tiny"
    backends: str = "paged,contiguous"
    kv_budget: str | None = None
    max_model_len: int = 2_048
    max_num_seqs: int = 128
    dtype: str = "bfloat16"
    cache: CacheMode = "static"
    #: of the contiguous server alone; None takes its own default
    kv_bits: int | None = None
    sliding_window: int | None = None
    compile: bool = False
    reserve: Literal["exact", "pow2", "max"] = "max"
    batching: Literal["continuous", "none", "static"] = "continuous"
    batch_size: int | None = None
    device: Literal["auto", "cpu", "gpu"] = "auto"
    gpu_memory_utilization: float | None = None
    threads: int | None = None
    paged_port: int = 8000
    contiguous_port: int = 8001
    start_timeout_s: float = 900.0


@dataclass(frozen=True)
class StackPlan:
    """The options with every default filled in and every name resolved."""

    home: Path
    model: ModelChoice
    backends: tuple[str, ...]
    kv_budget_bytes: int
    max_model_len: int
    max_num_seqs: int
    dtype: str
    cache: str
    kv_bits: int | None
    sliding_window: int | None
    compile: bool
    reserve: str
    batching: str
    batch_size: int | None
    device: Literal["cpu", "gpu"]
    gpu_memory_utilization: float | None
    threads: int
    ports: tuple[tuple[str, int], ...]
    start_timeout_s: float

    def port(self, backend: str) -> int:
        """The port of a backend's name."""
        return dict(self.ports)[backend]

    def settings(self) -> dict[str, Scalar]:
        """What two stacks must have in common to be the same."""
        return {
            "model": self.model.name,
            "backends": ",".join(self.backends),
            "kv_budget": exact_size(self.kv_budget_bytes),
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "dtype": self.dtype,
            "cache": self.cache,
            "reserve": self.reserve,
            "batching": self.batching,
            "batch_size": self.batch_size,
            "device": self.device,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "threads": self.threads,
            **{f"{name}_port": self.port(name) for name in self.backends},
            **self._unusual(),
        }

    def _unusual(self) -> dict[str, Scalar]:
        """Settings of the contiguous server that few ask for, where they were asked for."""
        found: dict[str, Scalar] = {
            "kv_bits": self.kv_bits,
            "sliding_window": self.sliding_window,
            "compile": self.compile or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def plan_stack(options: UpOptions, gpu_present: bool) -> StackPlan:
    """Fill in the defaults; raises OptionError for what cannot be."""
    backends = _backends(options.backends)
    ports = {"paged": options.paged_port, "contiguous": options.contiguous_port}
    if len(backends) > 1 and ports["paged"] == ports["contiguous"]:
        raise OptionError(
            "--contiguous-port", options.contiguous_port, "another port than --paged-port"
        )
    check_mode_options(options)
    model = choose_model(options.model, options.home)
    if options.kv_budget is None:
        budget = BUILT_IN.get(model.name, OTHER_BUDGET_BYTES)
    else:
        budget = parse_size(options.kv_budget, "--kv-budget")
    device = options.device
    if device == "auto":
        device = "gpu" if gpu_present else "cpu"
    if device == "cpu" and options.gpu_memory_utilization is not None:
        raise OptionError(
            "--gpu-memory-utilization", options.gpu_memory_utilization, "a GPU (see --device)"
        )
    return StackPlan(
        home=options.home.resolve(),
        model=model,
        backends=backends,
        kv_budget_bytes=budget,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        dtype=options.dtype,
        cache=options.cache,
        kv_bits=options.kv_bits,
        sliding_window=options.sliding_window,
        compile=options.compile,
        reserve=options.reserve,
        batching=options.batching,
        batch_size=options.batch_size,
        device=device,
        gpu_memory_utilization=options.gpu_memory_utilization,
        threads=options.threads or max(1, available_cores() - 1),
        ports=tuple((name, ports[name]) for name in backends),
        start_timeout_s=options.start_timeout_s,
    )


def require_fit(plan: StackPlan, facts: ModelFacts) -> None:
    """Raises OptionError when the model or the budget cannot hold ``max_model_len`` tokens."""
    length, most = plan.max_model_len, facts.max_positions
    if most is not None and length > most:
        raise OptionError("--max-model-len", length, f"at most {most}, the model's own limit")
    if facts.kv_bytes_per_token is None:
        return
    if "paged" not in plan.backends and plan.cache not in ("static", "dynamic"):
        # the server itself knows what its other modes need
        return
    least = length * facts.kv_bytes_per_token
    if plan.kv_budget_bytes < least:
        raise OptionError(
            "--kv-budget",
            exact_size(plan.kv_budget_bytes),
            f"at least {exact_size(least)}: one request of --max-model-len {length} tokens "
            f"x {facts.kv_bytes_per_token} B per token",
        )


def available_cores() -> int:
    """Cores that this process may use; one is left to the client by default."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not set(names) <= set(BACKENDS) or len(set(names)) != len(names):
        raise OptionError("--backends", text, "paged, contiguous, or both as paged,contiguous")
    return tuple(name for name in BACKENDS if name in names)
