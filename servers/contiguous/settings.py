"""How one server is run: what the command line says, checked, before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.kv.mode_options import DEFAULT_BATCH_SIZE

DEFAULT_CPU_KV_BUDGET_BYTES = 256 * 2**20
DEFAULT_PREFILL_CHUNK = 512
DEFAULT_KV_BITS: Literal[4] = 4


@dataclass(frozen=True)
class Settings:
    """One server; sizes in bytes, None where the default depends on model or device."""

    model: str
    served_model_name: str
    host: str = "127.0.0.1"
    port: int = 8001
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: int | None = None
    cache: Literal["off", "dynamic", "static", "quantized", "sliding"] = "static"
    #: quantized only; None takes DEFAULT_KV_BITS there
    kv_bits: Literal[4, 8] | None = None
    #: sliding only, tokens; None leaves the model's own windows
    sliding_window: int | None = None
    #: static only
    compile: bool = False
    batching: Literal["continuous", "none", "static"] = "continuous"
    #: most rows of a batch, batching static only
    batch_size: int | None = None
    #: what a request sets aside of a preallocated cache, cache static only
    reserve: Literal["exact", "pow2", "max"] = "max"
    kv_budget_bytes: int | None = None
    max_num_seqs: int = 256
    max_waiting: int = 256
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None

    @property
    def seqs_limit(self) -> int:
        """Requests that may run at once, by setting."""
        if self.batching == "static":
            return self.batch_size or min(DEFAULT_BATCH_SIZE, self.max_num_seqs)
        return 1 if self.batching == "none" else self.max_num_seqs

    @property
    def quantized_bits(self) -> Literal[4, 8] | None:
        """Bits of a quantized number; None in other modes."""
        return (self.kv_bits or DEFAULT_KV_BITS) if self.cache == "quantized" else None


def default_model_name(model: str) -> str:
    """What a model is called when nobody says: the folder's name, or the hub id."""
    path = Path(model)
    return path.resolve().name if path.is_dir() else model
