from __future__ import annotations

import msgspec
import pytest

from harness.manifest import BackendInfo
from harness.plan.fingerprint import fingerprint, workload_hash
from harness.records import Scalar
from harness.workload import Workload

WORK = Workload(
    scenario="concurrency",
    endpoint="completions",
    prompt_tokens=512,
    output_tokens=128,
    levels=(1.0, 4.0),
    min_requests=(100, 100),
    min_level_s=5,
    max_level_s=120,
    request_timeout_s=300,
    idle_timeout_s=60,
)
PAGED = BackendInfo(
    name="paged",
    url="http://127.0.0.1:8000",
    kind="vllm",
    mode="paged",
    model="tiny",
    dtype="bfloat16",
)
HARDWARE: dict[str, Scalar] = {"cpu": "model", "cores": 2}


def test_everything_that_must_match_is_in_it() -> None:
    facts = fingerprint(WORK, [PAGED], HARDWARE, "0.1.0")
    assert facts["harness.schema"] == 1
    assert facts["harness.version"] == "0.1.0"
    assert facts["workload.hash"] == workload_hash(WORK)
    assert facts["paged.model"] == "tiny"
    assert facts["paged.dtype"] == "bfloat16"
    # not stated by the server: absent, never 0
    assert facts["paged.max_num_seqs"] is None
    assert facts["hardware.cores"] == 2


def test_where_a_server_listens_is_not_in_it() -> None:
    moved = msgspec.structs.replace(PAGED, url="http://127.0.0.1:18000", source="launched")
    assert fingerprint(WORK, [PAGED], HARDWARE, "0") == fingerprint(WORK, [moved], HARDWARE, "0")


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("model", "other"),
        ("engine_version", "0.33.0"),
        ("dtype", "float16"),
        ("mode", "static"),
        ("kv_budget_bytes", 1),
        ("max_model_len", 2048),
        ("max_num_seqs", 8),
        ("block_size", 16),
    ],
)
def test_e104_another_server_is_another_fingerprint(fact: str, value: object) -> None:
    other = msgspec.structs.replace(PAGED, **{fact: value})
    assert fingerprint(WORK, [PAGED], HARDWARE, "0") != fingerprint(WORK, [other], HARDWARE, "0")


@pytest.mark.parametrize(
    ("fact", "value"),
    [("prompt_tokens", 511), ("levels", (1.0, 8.0)), ("seed", 1), ("scenario", "other")],
)
def test_e104_another_workload_is_another_hash(fact: str, value: object) -> None:
    assert workload_hash(WORK) != workload_hash(msgspec.structs.replace(WORK, **{fact: value}))
