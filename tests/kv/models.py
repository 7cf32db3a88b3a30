"""The configs of ``tests/fixtures/configs`` for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.cli_plan import plan_command
from harness.kv.engine import EngineOptions
from harness.kv.plan import plan
from harness.kv.plan_types import Plan, PlanOptions
from harness.kv.spec import ModelSpec, read_spec

CONFIGS = Path(__file__).parent.parent / "fixtures" / "configs"
GIB = 2**30


def config(name: str, **changes: Any) -> dict[str, Any]:
    """A config by file name, with changed top-level fields."""
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return loaded | changes


def spec(name: str, **changes: Any) -> ModelSpec:
    """The spec of a config by file name."""
    return read_spec(config(name, **changes))


def planned(name: str, options: PlanOptions | None = None, **changes: Any) -> Plan:
    """The plan of a config by file name."""
    return plan(config(name, **changes), options or PlanOptions(), name)


#: the built-in model of the demo, as changes of llama-2-7b: 1,024 B of KV per token
TINY: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 704,
    "vocab_size": 512,
    "max_position_embeddings": 16384,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


def tiny(**options: Any) -> PlanOptions:
    """The demo's settings, 16 MiB and 2,048 tokens on the CPU, with changes."""
    engine = EngineOptions(device="cpu", max_model_len=2048)
    base: dict[str, Any] = {"engine": engine, "kv_memory_bytes": 16 * 2**20}
    return PlanOptions(**(base | options))


def run(*arguments: str) -> None:
    """``kvknee plan`` in this process; raises what the command raises."""
    plan_command.main(args=list(arguments), standalone_mode=False)
