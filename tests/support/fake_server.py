"""A fake server: what it says of itself, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass

from harness.manifest import BackendInfo

MIB = 1024 * 1024
PROMPT, OUTPUT = 512, 128


@dataclass(frozen=True)
class FakeServer:
    """The truth about a server."""

    info: BackendInfo
    seats: int
    prefill_s: float = 0.024
    tpot_s: float = 0.0055
    tpot_per_running_s: float = 0.0004

    def tpot_at(self, level: int) -> float:
        return self.tpot_s + self.tpot_per_running_s * min(level, self.seats)


def paged_info(**changes: object) -> BackendInfo:
    """128 blocks of 128 tokens: 127 usable, 5 a request of 512 + 128, so 25 requests."""
    facts: dict[str, object] = {
        "name": "paged",
        "url": "http://127.0.0.1:8000",
        "kind": "vllm",
        "mode": "paged",
        "model": "tiny",
        "engine_version": "0.32.0",
        "dtype": "bfloat16",
        "max_model_len": 2048,
        "max_num_seqs": 256,
        "kv_budget_bytes": 16 * MIB,
        "block_size": 128,
        "num_blocks": 128,
        "kv_bytes_per_token": 1024,
        "source": "launched",
    }
    return BackendInfo(**{**facts, **changes})  # type: ignore[arg-type]


def static_info(**changes: object) -> BackendInfo:
    """16 MiB / (2,048 tokens x 1,024 B) = 8 slots."""
    facts: dict[str, object] = {
        "name": "contiguous",
        "url": "http://127.0.0.1:8001",
        "kind": "contiguous",
        "mode": "static",
        "block_size": None,
        "num_blocks": None,
        "engine_version": "0.1.0",
    }
    return paged_info(**{**facts, **changes})


PAGED = FakeServer(paged_info(), seats=25)


STATIC = FakeServer(static_info(), seats=8, prefill_s=0.05, tpot_s=0.009)
