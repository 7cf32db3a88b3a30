"""What must match between two nights before a figure of one backend may be compared. Pure.

The run's own fingerprint holds it already; here are the facts that count, for each backend
apart, so that another engine version of one server leaves the other's history whole.

The KV budget that was *asked for* must match; the bytes and blocks that the server made of it are
a result of the night, and half of them is a regression to be found, not another setup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from harness.manifest import Manifest
from harness.plan.fingerprint import workload_hash
from harness.records import Scalar

#: Of the backend; ``model`` holds the revision where the server states one.
_OF_BACKEND = (
    *("kind", "mode", "model", "engine_version", "dtype", "gpus", "threads", "libraries"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "prefill_chunk"),
    "block_size",
)

#: the memory that the kernel leaves differs by some KiB from one kernel to the next, and in a
#: virtual machine from boot to boot; each time would cost the baseline
_VARYING = frozenset({"hardware.memory_bytes"})


def setup_facts(
    manifest: Manifest, backend: str, asked: Mapping[str, Scalar] | None = None
) -> dict[str, Scalar]:
    """The facts of one backend's nights, under stable names; a fact not stated is None.

    ``asked`` is what the suite asked of it, such as ``kv_budget_bytes``. The workload is named
    without its seed: each repeat of a night has another, and asks for the same.
    """
    known = manifest.fingerprint
    workload = msgspec.structs.replace(manifest.workload, seed=0, repeats=1)
    facts: dict[str, Scalar] = {
        "harness.schema": known.get("harness.schema"),
        "workload.hash": workload_hash(workload),
    }
    facts |= {f"backend.{name}": known.get(f"{backend}.{name}") for name in _OF_BACKEND}
    facts |= {f"asked.{name}": value for name, value in sorted((asked or {}).items())}
    hardware = {key: value for key, value in known.items() if key.startswith("hardware.")}
    return facts | {key: hardware[key] for key in hardware if key not in _VARYING}


def setup_hash(facts: Mapping[str, Scalar]) -> str:
    """A short name of the facts."""
    raw = msgspec.json.encode(dict(facts), order="deterministic")
    return hashlib.sha256(raw).hexdigest()[:16]


def differing(old: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> tuple[str, ...]:
    """What differs, as ``backend.engine_version 0.31 (now 0.32)``, by name."""
    names = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    return tuple(f"{name} {old.get(name)} (now {new.get(name)})" for name in names)
