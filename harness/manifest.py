"""``manifest.json``: what was run, on what, against which servers."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.records import Scalar
from harness.workload import MatrixLimits, Slo, Workload


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server under test, as it described itself before the load."""

    name: str
    #: without credentials
    url: str
    #: a row of ``harness.observe.backends``: ``vllm``, ``contiguous``, ..., ``openai`` (unknown)
    kind: str
    mode: str
    model: str
    engine_version: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_budget_bytes: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    #: layers x KV heads x head_dim x 2 x dtype bytes, from the model's config when known
    kv_bytes_per_token: int | None = None
    #: bits per element of a quantized cache
    kv_bits: int | None = None
    #: tokens that a sliding cache keeps in every layer
    sliding_window: int | None = None
    #: CPU threads that the server computes with
    threads: int | None = None
    #: tokens of a prompt that the contiguous server reads in one step
    prefill_chunk: int | None = None
    #: versions of what the server computes with, where it states them
    libraries: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    #: "launched" when this machine's stack started it and its flags are known
    source: Literal["launched", "attached"] = "attached"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``: what was run, where, on what."""

    schema_version: int
    run_id: str
    kvknee_version: str
    #: ``running`` until the end: a run whose process was killed keeps it
    status: Literal["running", "complete", "interrupted", "failed"]
    #: anchor that joins monotonic times to Prometheus: both clocks read together
    t0_s: float
    t0_wall_s: float
    t_end_s: float | None = None
    workload: Workload
    slo: Slo
    max_failure_rate: float
    backends: tuple[BackendInfo, ...]
    #: all that must match between comparable runs, flat: see ``harness.plan.fingerprint``
    fingerprint: dict[str, Scalar]
    #: the machine of the client and library versions, for information
    environment: dict[str, Scalar]
    scrape_interval_s: float
    prometheus_url: str | None = None
    #: of a matrix; None for other runs and for those of earlier versions
    matrix: MatrixLimits | None = None

    def backend(self, name: str) -> BackendInfo:
        """The backend of that name; raises KeyError."""
        for info in self.backends:
            if info.name == name:
                return info
        raise KeyError(name)
