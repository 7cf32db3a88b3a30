"""What must match between two runs before their figures may be compared. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from harness.manifest import BackendInfo
from harness.records import SCHEMA_VERSION, Scalar
from harness.workload import Workload

#: Facts of a backend that change what its figures mean. Its URL and process do not.
_BACKEND_FACTS = (
    "kind",
    "mode",
    "model",
    "engine_version",
    "dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_budget_bytes",
    "block_size",
    "num_blocks",
    "kv_bytes_per_token",
    "threads",
    "prefill_chunk",
    "libraries",
)


def workload_hash(workload: Workload) -> str:
    """A short name of everything that is asked of the servers.

    A closed loop has the name that it had before there was anything else.
    """
    asked = msgspec.structs.asdict(workload)
    for name in ("open_loop", "shapes", "soak", "asks", "search"):
        if asked[name] is None:
            del asked[name]
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:16]


def fingerprint(
    workload: Workload,
    backends: Iterable[BackendInfo],
    hardware: Mapping[str, Scalar],
    kvknee_version: str,
) -> dict[str, Scalar]:
    """A flat map; keys are ``workload.*``, ``<backend>.*``, ``hardware.*`` and the harness's.

    A fact that a server does not state is None: two runs that both lack it match.
    """
    facts: dict[str, Scalar] = {
        "harness.schema": SCHEMA_VERSION,
        "harness.version": kvknee_version,
        "workload.hash": workload_hash(workload),
    }
    for info in backends:
        facts |= {f"{info.name}.{fact}": getattr(info, fact) for fact in _BACKEND_FACTS}
        facts[f"{info.name}.gpus"] = len(info.gpu_uuids)
    return facts | {f"hardware.{key}": value for key, value in sorted(hardware.items())}
